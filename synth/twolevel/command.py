"""What ``synth generate --nodes M --per-node G`` does, from the options as typed to the output."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from synth.cost import Link
from synth.straggler.instance import PortModel
from synth.straggler.search import Progress
from synth.twolevel.machine import Machine
from synth.twolevel.search import Record, search
from synth.twolevel.show import record_json, record_text
from synth.units import parse_bandwidth, parse_bytes, parse_seconds
from verify.core.format import write
from verify.errors import ArgumentError


@dataclass(frozen=True)
class Options:
    """The options that describe the machine, as typed; None where they were not given.

    ``alpha`` and ``bandwidth`` are those of the links inside a node.
    """

    nodes: int | None
    per_node: int | None
    network_ports: int | None
    alpha: str | None
    bandwidth: str | None
    outer_alpha: str | None
    outer_bandwidth: str | None

    def given(self) -> bool:
        """Whether a machine of two levels is asked for.

        Raises:
            ArgumentError: some option for one is there, but not both of ``--nodes`` and
                ``--per-node``.
        """
        if self.nodes is not None and self.per_node is not None:
            return True
        for name, value in [
            ("--nodes", self.nodes),
            ("--per-node", self.per_node),
            ("--network-ports", self.network_ports),
            ("--outer-alpha", self.outer_alpha),
            ("--outer-bandwidth", self.outer_bandwidth),
        ]:
            if value is not None:
                raise ArgumentError(name, value, "is used only with both --nodes and --per-node")
        return False

    def machine(self, n: int | None) -> Machine:
        """The machine; ``n`` is what ``--n`` says, if anything.

        Raises:
            ArgumentError: an option is out of its range, or ``n`` is not nodes * per node.
        """
        assert self.nodes is not None
        assert self.per_node is not None
        ranks = self.nodes * self.per_node
        if n is not None and n != ranks:
            raise ArgumentError(
                "--n", n, f"must be --nodes times --per-node, {ranks}", "Leave --n out"
            )
        return Machine(
            self.nodes,
            self.per_node,
            self.per_node if self.network_ports is None else self.network_ports,
            Link(
                parse_seconds("--alpha", self.alpha or "3us"),
                parse_bandwidth("--bandwidth", self.bandwidth or "450GB/s"),
            ),
            Link(
                parse_seconds("--outer-alpha", self.outer_alpha or "10us"),
                parse_bandwidth("--outer-bandwidth", self.outer_bandwidth or "50GB/s"),
            ),
        )


def generate(
    options: Options,
    output: Path,
    *,
    n: int | None,
    buffer: str | None,
    late: int | None,
    m: int | None,
    ports: PortModel,
    seed: int,
    time_limit_s: float,
    progress: Progress,
) -> Record:
    """Search for the best schedule on the machine of ``options`` and write it to ``output``.

    Raises:
        ArgumentError: an option is missing or out of its range.
    """
    machine = options.machine(n)
    if ports != "duplex":
        raise ArgumentError("--ports", ports, "must be duplex with --nodes")
    if buffer is None:
        raise ArgumentError("--bytes", None, "is needed with --nodes", "For example: --bytes 1GiB")
    record = search(
        machine,
        parse_bytes("--bytes", buffer),
        late=late,
        m=m,
        seed=seed,
        time_limit_s=time_limit_s,
        progress=progress,
    )
    write(record.winner.schedule, output)
    return record


def shown(record: Record, output: Path, *, json: bool) -> str:
    """What to print about it."""
    if json:
        return msgspec.json.encode(record_json(str(output), record)).decode()
    return record_text(str(output), record)
