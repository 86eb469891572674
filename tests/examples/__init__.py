"""Tests that run the programs of the folder `examples`."""
