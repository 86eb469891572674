"""Participation of clients: the schemas that guarantees assume, and the ledger of a run."""
