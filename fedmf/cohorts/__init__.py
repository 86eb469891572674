"""Cohorts of clients: the participation controller, and models of devices and availability."""
