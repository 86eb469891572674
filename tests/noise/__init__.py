"""Tests of noise streams, their block forms and the choice of a noise strategy."""
