"""The parts that fits of all families share: cache, progress and descent."""
