"""What the same bits cost: accuracy beside DDP's own sums, and time."""
