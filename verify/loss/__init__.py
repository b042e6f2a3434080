"""What a lost transfer does to the result of a collective schedule."""
