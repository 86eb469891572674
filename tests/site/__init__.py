"""Tests of the documentation as a built site."""
