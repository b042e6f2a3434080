"""Pipeline schedules: the named ones, a fast list scheduler, and the optimum by CP-SAT."""
