"""Schedules for one late rank: the helpers' ReduceScatter while they wait, then the completion."""
