"""Public algorithm files: verdicts over all of them, each refuted one confirmed by execution."""
