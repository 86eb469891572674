"""Tests of the participation controller: availability, cohorts, budgets and forecasts."""
