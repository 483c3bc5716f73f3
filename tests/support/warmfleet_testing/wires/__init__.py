"""Connections in memory, on which a test decides what arrives in one read."""
