"""Programs that GPUs run on their own: one kernel per rank and operation, staging and flags."""
