"""Files of a training run: its configuration, its folder, and the records of its rounds."""
