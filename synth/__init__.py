"""Makes schedules: searched ones for a late rank, and the standard ones for ranks on time."""

if __name__ != "latecomer.synth":
    raise ImportError("synth is a part of latecomer: import latecomer.synth in its place")


from latecomer.synth.standard import circulant, direct, doubling, rhd, ring, tree
from latecomer.synth.straggler.generate import generate

__all__ = ["circulant", "direct", "doubling", "generate", "rhd", "ring", "tree"]
