"""Tests of the tasks that fedmf ships: their data files, models and options."""
