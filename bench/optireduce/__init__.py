"""Measurements of docs/optireduce.md."""
