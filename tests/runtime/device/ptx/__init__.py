"""The shipped kernel's PTX, executed: an interpreter, weak memory, adversaries, mutants."""
