"""What a person at a terminal meets: progress bars and Ctrl-C."""
