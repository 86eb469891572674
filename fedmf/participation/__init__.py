"""Participation of clients: the schemas, constraints on each client's rounds that privacy
guarantees assume, and the ledger, which records who took part in a run.
"""
