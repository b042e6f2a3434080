"""What deciding costs the rank that coordinates, against the number of ranks, in each mode.

    python -m bench.coordinator [--ranks 8 32 128 512 1024] [--operations 40]

The ranks' real state machines on the simulated network of the tests, which neither loses nor
doubles here. Counted is the CPU time of what the coordinating rank's state machine does and of
packing and unpacking its messages, sockets and threads left out, after some operations in which it
learns; and the same of the busiest other rank. Pings that align clocks are left out: each rank
sends one in two seconds, however many operations there are. One rank is late by 0.2 s, or none; the
others come within a millisecond.
"""

from __future__ import annotations

import argparse
import gc
import time
from typing import Any

import msgspec

from runtime.network.clock import Ping, Pong
from runtime.policy.agent import RankAgent
from runtime.policy.candidates import CLASSES
from runtime.policy.cost_model import AlphaBeta, Phase, Profile, ScheduleCandidate
from runtime.policy.options import MODES, Mode, Options, PolicyInputs
from synth.candidates import closed_form_costs
from tests.runtime.policy.network import MESSAGES, Network

WARM_UP = 20
LATE_S = 0.2
SPREAD_S = 0.001
METER_S = -sum(time.thread_time() - time.thread_time() for _ in range(1000)) / 1000
"""What reading the meter costs; it is taken off."""
LINE = AlphaBeta(1e-6, 1e-6)  # both ways; of a buffer of 10 ms on a port


def closed_forms(ranks: int) -> tuple[ScheduleCandidate, ...]:
    """What decisions may choose from, beyond the ranks for which schedules are searched."""

    def priced(chunks: int) -> ScheduleCandidate:
        waiting, completion = (
            Phase(cost.messages, float(cost.share)) for cost in closed_form_costs(ranks, chunks)
        )
        return ScheduleCandidate(f"one late, k = {chunks}", 1, waiting, completion, on_demand=True)

    return tuple(map(priced, CLASSES))


class Metered:
    """A rank's agent whose calls are timed: CPU seconds, while it is ``counting``."""

    def __init__(self, agent: RankAgent) -> None:
        self.agent = agent
        self.cpu_s = 0.0
        self.counting = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.agent, name)
        if not callable(found):
            return found

        def timed(*args: Any) -> Any:
            began_s = time.thread_time()
            result = found(*args)
            if name == "messages_to_send":
                for message in {id(message): message for _, message in result}.values():
                    msgspec.msgpack.encode(message)  # as the sender does, once
            if self.counting:
                self.cpu_s += time.thread_time() - began_s - METER_S
            return result

        setattr(self, name, timed)
        return timed


class Timed(Network):
    """Counts CPU seconds and messages, by rank, from operation ``WARM_UP`` on."""

    def __post_init__(self) -> None:
        """Agents with the candidates of so many ranks; nothing counted yet."""
        super().__post_init__()
        known = closed_forms(self.size), Profile(self.size, LINE, LINE)
        for rank in range(self.size):
            agent = RankAgent(rank, PolicyInputs(self.options, self.size, *known))
            agent.made = -1
            self.agents[rank] = Metered(agent)
        self.received = [0] * self.size

    def _happen(self, rank: int, what: Any = None, *more: Any) -> None:
        is_clock = what == self._receive and isinstance(MESSAGES.decode(more[1]), Ping | Pong)
        agent = self.agents[rank]
        agent.counting = len(self.decisions[0]) >= WARM_UP and not is_clock
        if agent.counting and what == self._receive:
            began_s = time.thread_time()
            MESSAGES.decode(more[1])
            agent.cpu_s += time.thread_time() - began_s - METER_S
            self.received[rank] += 1
        super()._happen(rank, what, *more)


def measure(mode: Mode, ranks: int, operations: int, late_s: float) -> str:
    """A row: the coordinator's CPU per operation and per message, the busiest other rank's."""
    late = ranks - 2
    options = Options(mode, late=(late,) if mode == "static" else ())
    network = Timed(ranks, options, WARM_UP + operations, window=1, longest_s=SPREAD_S / 4)

    def lateness(rank: int, number: int) -> float:
        return float(network.dice.random() * SPREAD_S + late_s * (rank == late))

    network.lateness = lateness
    gc.disable()  # it would go through all ranks' memory, in one rank's time
    network.run()
    gc.enable()
    assert not network.faults
    assert all(len(each) == network.operations for each in network.decisions)
    at = network.agents[0].epochs.latest.coordinator
    cpu_s = [agent.cpu_s for agent in network.agents]
    cpu_ms = [seconds * 1e3 / operations for seconds in cpu_s]
    messages = network.received[at] / operations
    each_us = f"{cpu_ms[at] * 1e3 / messages:.0f}" if messages >= 1 else ""
    others = max(cpu for rank, cpu in enumerate(cpu_ms) if rank != at)
    who = f"one by {late_s:g} s" if late_s else "none"
    figures = f"{messages:.1f} | {cpu_ms[at]:.2f} | {each_us} | {others:.2f}"
    return f"| {mode} | {who} | {ranks} | {figures} |"


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 32, 64, 128, 512, 1024])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--operations", type=int, default=40)
    options = parser.parse_args()
    print("| mode | late | ranks | messages heard | CPU ms per operation | us per message ", end="")
    print("| busiest other rank, ms |\n|:--|:--|--:|--:|--:|--:|--:|")
    for mode in options.modes:
        for late_s in (LATE_S, 0.0):
            for ranks in options.ranks:
                print(measure(mode, ranks, options.operations, late_s), flush=True)


if __name__ == "__main__":
    main()
