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

from latecomer.runtime.network.clock import Ping, Pong
from latecomer.runtime.policy.agent import RankAgent
from latecomer.runtime.policy.candidates import costs_of_closed_forms
from latecomer.runtime.policy.cost_model import AlphaBeta, Profile
from latecomer.runtime.policy.options import MODES, Mode, Options, PolicyInputs
from tests.runtime.policy.network import MESSAGES, Network

WARM_UP = 20
LATE_S = 0.2
SPREAD_S = 0.001
METER_S = -sum(time.thread_time() - time.thread_time() for _ in range(1000)) / 1000
"""What reading the meter costs; it is taken off."""
LINE = AlphaBeta(1e-6, 1e-6)  # both ways; of a buffer of 10 ms on a port


class Metered:
    """A rank's agent whose calls are timed: CPU seconds, while it is ``counting``."""

    def __init__(self, agent: RankAgent) -> None:
        self.agent = agent
        self.cpu_s = 0.0
        self.counting = False

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.agent, name)
        if not callable(attribute):
            return attribute

        def timed(*args: Any) -> Any:
            began_s = time.thread_time()
            result = attribute(*args)
            if name == "messages_to_send":
                different = {id(message): message for _, message in result}
                for message in different.values():
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
        candidates = costs_of_closed_forms(self.size)
        profile = Profile(self.size, LINE, LINE)
        for rank in range(self.size):
            inputs = PolicyInputs(self.options, self.size, candidates, profile)
            agent = RankAgent(rank, inputs)
            agent.made = -1
            self.agents[rank] = Metered(agent)
        self.received = [0] * self.size

    def _happen(self, rank: int, event: Any = None, *arguments: Any) -> None:
        is_receive = event == self._receive
        is_clock = is_receive and isinstance(MESSAGES.decode(arguments[1]), Ping | Pong)
        agent = self.agents[rank]
        agent.counting = len(self.decisions[0]) >= WARM_UP and not is_clock
        if agent.counting and is_receive:
            began_s = time.thread_time()
            MESSAGES.decode(arguments[1])
            agent.cpu_s += time.thread_time() - began_s - METER_S
            self.received[rank] += 1
        super()._happen(rank, event, *arguments)


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
    for decisions in network.decisions:
        assert len(decisions) == network.operations

    coordinator = network.agents[0].epochs.latest.coordinator
    cpu_ms = [agent.cpu_s * 1e3 / operations for agent in network.agents]
    coordinator_ms = cpu_ms[coordinator]
    messages = network.received[coordinator] / operations
    per_message_us = f"{coordinator_ms * 1e3 / messages:.0f}" if messages >= 1 else ""
    busiest_ms = max(ms for rank, ms in enumerate(cpu_ms) if rank != coordinator)
    late_ranks = f"one by {late_s:g} s" if late_s else "none"
    figures = f"{messages:.1f} | {coordinator_ms:.2f} | {per_message_us} | {busiest_ms:.2f}"
    return f"| {mode} | {late_ranks} | {ranks} | {figures} |"


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
