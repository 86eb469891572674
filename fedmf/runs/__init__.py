"""The files of a run: its configuration, its folder and its rounds."""
