"""Solvers behind one interface: ``Model`` in, ``Found``, ``Exhausted`` or ``Undecided`` out."""
