"""Training of clients with PyTorch, one by one or many in one call."""
