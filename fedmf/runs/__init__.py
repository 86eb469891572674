"""What a run leaves on disk: its configuration, its folder, its rounds."""
