"""The server side of training with a privacy plan, without a training framework: it clips and sums
client updates, adds noise, and commits each round to a journal.
"""
