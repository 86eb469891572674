"""Terminal support for commands, such as progress bars, output that survives a lost reader, and
Ctrl-C as a flag.
"""
