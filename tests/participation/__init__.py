"""Tests of participation schemas, statistics and ledgers."""
