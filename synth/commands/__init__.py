"""One file a command; an option that has no use beside the others is refused, never ignored."""
