"""Terminal support: progress bars, output that survives a lost reader, and Ctrl-C as a flag."""
