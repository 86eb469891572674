"""Privacy accounting, which covers the noise that a guarantee needs, the plan of a run, and its
statement.
"""
