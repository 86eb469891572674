"""Training of clients with Keras and TFF models, and clipping and summing of their updates."""
