"""Swarms of replicas that die, stop, are cut off, come back, in every phase of a change of view."""
