"""Who arrived when: clocks aligned across ranks, records of operations, and what they add up to."""
