"""Measurements of docs/explanation/optireduce.md."""
