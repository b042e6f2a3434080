"""Measurements of docs/measurements/optireduce.md."""
