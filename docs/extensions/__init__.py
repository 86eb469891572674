"""What the site adds to Sphinx."""
