"""A page on a run's arrivals, from the traces that ``latecomer.watch`` writes."""
