"""Who arrived when, what was decided and what was lost: recorded, summed up, exported."""
