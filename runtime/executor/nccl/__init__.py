"""Running operations on tensors of a device with streams, over process groups of NCCL (or Gloo)."""
