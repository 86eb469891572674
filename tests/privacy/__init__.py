"""Tests of plans, accounting, calibration and privacy statements."""
