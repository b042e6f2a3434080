"""Sums of floating point numbers as sums of integers: the same bits, whoever is late.

See docs/explanation/same-bits.md for the method, and what of it is proved.
"""
