"""Schedules for ranks that arrive at given rounds: what is ready is exchanged while the rest is
still being reduced.
"""
