"""Tests of `fedmf.server`, and of what operators, clients and crashes can do to a server."""
