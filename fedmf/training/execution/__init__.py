"""Executions, which compute the rounds of a run in this process or on other machines."""
