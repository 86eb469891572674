"""The server side of training with a privacy plan, without a training framework. It clips and sums
client updates, adds noise, and commits each round to a journal.
"""
