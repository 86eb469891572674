"""Who takes part, and how often: the schema a guarantee rests on,
the ledger of a run, its statistics.
"""
