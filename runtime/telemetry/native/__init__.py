"""Watches the process groups of torch's own, whose collectives run natively."""
