"""Executions of rounds, in this process or on other machines."""
