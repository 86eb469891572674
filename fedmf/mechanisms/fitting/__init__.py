"""Functions that the fits of all mechanism families share, such as the cache of results, the
progress reports and the descent methods.
"""
