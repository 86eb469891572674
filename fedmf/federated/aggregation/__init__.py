"""Clipping, the DPQuery, and the aggregators made of it."""
