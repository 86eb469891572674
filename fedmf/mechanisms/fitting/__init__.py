"""Functions that the fits of all families share: a cache of results, progress reports, and descent
methods.
"""
