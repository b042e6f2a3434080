"""Measurements: how fast things are, and how they scale."""
