"""OptiReduce: AllReduce with a bounded finish, over plain UDP (arXiv 2310.06993)."""
