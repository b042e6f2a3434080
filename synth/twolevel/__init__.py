"""Schedules for machines of several nodes, with fast links inside a node and slow ones between."""
