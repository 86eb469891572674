"""Participation of clients, with schemas, which constrain the rounds of each client, and the
ledger, which records who took part in a run.
"""
