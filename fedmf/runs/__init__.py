"""Files of a training run, such as its configuration, its folder, and the records of its rounds."""
