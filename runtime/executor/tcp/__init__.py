"""Running operations on CPU tensors over TCP connections of our own."""
