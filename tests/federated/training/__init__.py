"""Tests of training runs in TensorFlow: resumes, metrics, models and refusals."""
