"""What a person reads of a check: explanations, pictures, text."""
