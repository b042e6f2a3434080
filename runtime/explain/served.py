"""The file in which a rank says where its dumps can be had, and what they do not tell."""

from __future__ import annotations

import msgspec

SUFFIX = ".server"


class RankFile(msgspec.Struct, frozen=True):
    """What it holds.

    Attributes:
        url: of torch's server in the rank's process.
        groups: by name, the ranks of each process group that the rank is in.
    """

    rank: int
    world_size: int
    host: str
    process: int
    url: str
    groups: dict[str, list[int]]
