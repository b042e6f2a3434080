"""Compiles now what would be compiled on first use; part of an installation."""

from __future__ import annotations

from latecomer.runtime.optireduce.udp.compiled.choice import choose

if __name__ == "__main__":
    print(choose("auto").how)
