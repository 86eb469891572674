"""What was guaranteed after the fact: of a ledger, a log, a run folder, and of released noise."""
