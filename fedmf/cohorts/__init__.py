"""Selection of the clients of each round, and models of devices that are not always available."""
