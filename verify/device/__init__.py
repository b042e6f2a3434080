"""Programs that GPUs run on their own: one kernel per rank and operation, staging slots and flags."""
