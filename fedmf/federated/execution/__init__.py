"""Client work of Keras and TFF models."""
