"""Makes schedules: searched ones for a late rank, and the standard ones for ranks on time."""

from synth.standard import direct, doubling, rhd, ring, tree
from synth.straggler.generate import generate

__all__ = ["direct", "doubling", "generate", "rhd", "ring", "tree"]
