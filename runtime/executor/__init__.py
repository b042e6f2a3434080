"""Runs a proved schedule: this rank's program, round by round, over TCP or NCCL."""
