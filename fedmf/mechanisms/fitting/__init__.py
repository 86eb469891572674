"""What all fits share: the cache, progress, descent."""
