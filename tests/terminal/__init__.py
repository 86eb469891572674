"""Tests of interrupts, output and the progress bar on terminals."""
