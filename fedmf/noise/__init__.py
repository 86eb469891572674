"""How rows of correlated noise N Z are made. Nothing here knows a mechanism."""
