"""Who is dead, silent or slow: found out when a wait lasts too long, and named on all ranks."""
