"""All-reduce on GPUs: one kernel per operation, and transfers over NCCL where no kernel can run."""
