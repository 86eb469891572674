"""Tests of the command line: its help, messages, exit statuses and files."""
