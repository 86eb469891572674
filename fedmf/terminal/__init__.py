"""Progress bars, output and Ctrl-C at a terminal."""
