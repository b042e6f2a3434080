"""Transpose AllReduce: every contribution goes straight to its chunk's owner, every sum back."""
