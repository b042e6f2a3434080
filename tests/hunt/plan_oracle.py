"""What MSCCL++'s executor does with a plan, in every interleaving of its threads.

An own reading of ``execution_plan.cc``, ``execution_kernel.hpp`` and ``concurrency_device.hpp`` of
microsoft/mscclpp, which shares nothing with ``verify``. Each block has a few threads. Number t
signals, waits, acquires and releases what stands at place t of an operation's list, and does those
words of an area whose number is t, modulo the threads; the threads meet at ``nop`` and ``barrier``.
A barrier is the device's: three counters in turn, which a block leaves when its counter *is* the
number it was given; one of 1 is left at once. A packet lies in scratch and takes twice the room of
its data, so what is stored beneath it spoils it.
"""

from __future__ import annotations

import json
import random
from math import lcm
from typing import Any

from tests.hunt.interleavings import JUNK, Undecided, Value
from tests.hunt.outcome import Seen
from tests.hunt.threads import ABSENT, Act, Machine

Fields = dict[str, Any]
STATES = 150
SCHEDULES = 20
FEW = 3
SUMS = {"re", "res", "rre", "rres", "respkt", "repkt", "recpkt", "recspkt"}
INTO_PACKETS = {"ppkt": 0, "rppkt": 0, "cpkt": 0, "respkt": 1, "recpkt": 1, "recspkt": 1}
FROM_PACKETS = {"rppkt": 0, "upkt": 0, "respkt": 1, "repkt": 1, "recpkt": 1, "recspkt": 1}


class Fault(Exception):
    """What no executor defines."""


class Plan:
    """A plan as threads, counters and cells."""

    def __init__(self, plan: Fields, seed: int) -> None:
        self.plan = plan
        self.gpus = plan["gpus"]
        operations = [op for g in self.gpus for b in g["threadblocks"] for op in b["ops"]]
        lists = [len(op.get("channel_ids", op.get("semaphore_ids", ()))) for op in operations]
        self.lanes = max([2, *lists])
        groups = [op["tbg_info"]["tbg_size"] for op in operations if "tbg_info" in op]
        self.words = self.lanes * lcm(1, *groups)
        self._cells(random.Random(seed))
        self.counters: list[int] = []
        self.numbers: dict[object, int] = {}
        self.threads: list[list[Act]] = []
        self._users()
        for rank, gpu in enumerate(self.gpus):
            for number, block in enumerate(gpu["threadblocks"]):
                self.threads += self._block(rank, number, block)

    # memory

    def _cells(self, draw: random.Random) -> None:
        total = 0
        self.starts: dict[tuple[int, str], tuple[int, int]] = {}
        self.packets: set[int] = set()
        self.spoils: dict[int, tuple[int, ...]] = {}
        for rank, gpu in enumerate(self.gpus):
            chunks = {"i": gpu["input_chunks"], "o": gpu["output_chunks"]}
            if self.plan["inplace"]:
                chunks["o"] = max(chunks.values())
            chunks |= {"s": 2 * gpu["scratch_chunks"], "p": gpu["scratch_chunks"]}
            for name, many in chunks.items():
                self.starts[rank, name] = (total, many)
                total += many * self.words
            plain = self.starts[rank, "s"][0]
            packet = self.starts[rank, "p"][0]
            for word in range(gpu["scratch_chunks"] * self.words):
                beneath = (plain + 2 * word, plain + 2 * word + 1)
                self.packets.add(packet + word)
                self.spoils[packet + word] = beneath
                self.spoils |= dict.fromkeys(beneath, (packet + word,))
        self.memory: list[Value] = [JUNK] * total
        for packet in self.packets:
            self.memory[packet] = ABSENT
        self.inputs = {}
        for rank, gpu in enumerate(self.gpus):
            for word in range(gpu["input_chunks"] * self.words):
                value = draw.randrange(1, 2**61)
                self.inputs[rank, word] = value
                self.memory[self._cell(rank, "i", word)] = value

    def _cell(self, rank: int, buffer: str, word: int) -> int:
        start, chunks = self.starts[rank, buffer]
        if buffer == "s":
            chunks //= 2  # the rest is there for packets only
        if not 0 <= word < chunks * self.words:
            raise Fault(f"rank {rank} has no {buffer}[{word // self.words}]")
        if self.plan["inplace"] and buffer == "i":
            start = self.starts[rank, "o"][0]
            if self.plan["collective"] == "allgather":
                start += rank * self.gpus[rank]["input_chunks"] * self.words
        return start + word

    def wanted(self) -> dict[int, int]:
        """What is to be where at the end."""
        ranks = range(len(self.gpus))
        words = self.gpus[0]["input_chunks"] * self.words
        found = {}
        for rank in ranks:
            if self.plan["collective"] == "allreduce":
                for word in range(words):
                    total = sum(self.inputs[other, word] for other in ranks)
                    found[self._cell(rank, "o", word)] = total
            else:
                for other in ranks:
                    for word in range(words):
                        value = self.inputs[other, word]
                        found[self._cell(rank, "o", other * words + word)] = value
        return found

    # counters

    def _counter(self, key: object, start: int = 0, many: int = 1) -> int:
        known = self.numbers.get(key)
        if known is None:
            known = self.numbers[key] = len(self.counters)
            self.counters += [start] * many
        return known

    def _users(self) -> None:
        """Which channels, semaphores and barriers are used so that order matters."""
        waiters: dict[object, set[object]] = {}
        barriers: dict[tuple[int, int], dict[int, list[int]]] = {}
        for rank, gpu in enumerate(self.gpus):
            for number, block in enumerate(gpu["threadblocks"]):
                for op in block["ops"]:
                    if op["name"] in {"wait", "rlxwait"}:
                        for lane, local in enumerate(op["channel_ids"]):
                            end = ("channel", rank, self._channel(rank, number, local))
                            waiters.setdefault(end, set()).add((number, lane))
                    elif op["name"] == "sem_acquire":
                        for lane, semaphore in enumerate(op["semaphore_ids"]):
                            key = ("semaphore", rank, semaphore)
                            waiters.setdefault(key, set()).add((number, lane))
                            if self._initial(rank, semaphore) < 0:
                                waiters[key].add("negative")
                    elif op["name"] == "barrier":
                        of = barriers.setdefault((rank, op["barrier_id"]), {})
                        of.setdefault(number, []).append(op["num_threadblocks"])
        self.contended = {key for key, who in waiters.items() if len(who) > 1}
        for (rank, number), uses in barriers.items():
            counts = {count for of_block in uses.values() for count in of_block}
            times = {len(of_block) for of_block in uses.values()}
            if counts != {len(uses)} or len(times) > 1:
                self.contended.add(("barrier", rank, number))

    def _initial(self, rank: int, semaphore: int) -> int:
        semaphores = self.gpus[rank].get("semaphores", [])
        if not 0 <= semaphore < len(semaphores):
            raise Fault(f"rank {rank} has no semaphore {semaphore}")
        return int(semaphores[semaphore]["init_value"])

    def _key(self, key: object) -> int | None:
        return self._counter(key) if key in self.contended else None

    def _channel(self, rank: int, block: int, local: int) -> int:
        groups = self.gpus[rank]["threadblocks"][block].get("channels", [])
        ids = [n for g in groups if g["channel_type"] == "memory" for n in g["channel_ids"]]
        if not 0 <= local < len(ids):
            raise Fault(f"rank {rank} block {block} has no channel {local}")
        return int(ids[local])

    def _peers(self, rank: int) -> list[int]:
        groups = self.gpus[rank].get("channels", [])
        return [p for g in groups if g["channel_type"] == "memory" for p in g["connected_to"]]

    def _other_end(self, rank: int, channel: int) -> tuple[int, int]:
        peers = self._peers(rank)
        if not 0 <= channel < len(peers):
            raise Fault(f"rank {rank} has no channel {channel}")
        peer = peers[channel]
        nth = peers[:channel].count(peer)
        theirs = [n for n, other in enumerate(self._peers(peer)) if other == rank]
        if nth >= len(theirs):
            raise Fault(f"channel {channel} of rank {rank} has no other end")
        return peer, theirs[nth]

    # threads

    def _block(self, rank: int, number: int, block: Fields) -> list[list[Act]]:
        threads: list[list[Act]] = [[] for _ in range(self.lanes)]
        met = self._counter(("met", rank, number))
        meetings = 0
        for op in block["ops"]:
            name = op["name"]
            if name in {"nop", "barrier"}:
                meetings += 1
                self._meet(threads, met, meetings)
            if name == "barrier" and op["num_threadblocks"] != 1:
                key = ("barrier", rank, op["barrier_id"])
                syncer = self._counter(("syncer", *key), many=4)
                threads[0].append(Act("arrive", syncer, key=self._key(key)))
                threads[0].append(Act("leave", syncer, op["num_threadblocks"], key=self._key(key)))
                meetings += 1
                self._meet(threads, met, meetings)
            elif name in {"signal", "rlxsignal"}:
                for lane, local in enumerate(op["channel_ids"]):
                    end = self._other_end(rank, self._channel(rank, number, local))
                    threads[lane].append(Act("raise", self._counter(("signals", *end))))
            elif name in {"wait", "rlxwait"}:
                for lane, local in enumerate(op["channel_ids"]):
                    end = (rank, self._channel(rank, number, local))
                    key = self._key(("channel", *end))
                    ticket = self._counter(("waits", *end))
                    if key is None:
                        threads[lane].append(Act("ticket", ticket))
                    else:  # what is waited for is counted in plain memory
                        threads[lane].append(Act("load", ticket, key=key))
                        threads[lane].append(Act("store", ticket, key=key))
                    threads[lane].append(Act("token", self._counter(("signals", *end)), key=key))
            elif name in {"sem_release", "sem_acquire"}:
                for lane, semaphore in enumerate(op["semaphore_ids"]):
                    start = self._initial(rank, semaphore)
                    at = self._counter(("value", rank, semaphore), start)
                    key = self._key(("semaphore", rank, semaphore))
                    if name == "sem_release":
                        threads[lane].append(Act("raise", at, key=key))
                    else:
                        threads[lane].append(Act("acquire", at, key=key))
                        threads[lane].append(Act("poll", at, key=key))
            elif name not in {"nop", "barrier", "flush"}:
                self._data(threads, rank, number, op)
        return threads

    def _meet(self, threads: list[list[Act]], met: int, meetings: int) -> None:
        for thread in threads:
            thread.append(Act("raise", met))
            thread.append(Act("at least", met, meetings * self.lanes))

    def _data(self, threads: list[list[Act]], rank: int, number: int, op: Fields) -> None:
        name = op["name"]
        sources = [
            self._area(rank, number, op, area, n >= FROM_PACKETS.get(name, 99), n, "src")
            for n, area in enumerate(op["src_buff"])
        ]
        targets = [
            self._area(rank, number, op, area, n >= INTO_PACKETS.get(name, 99), n, "dst")
            for n, area in enumerate(op["dst_buff"])
        ]
        if name in SUMS:
            words = len(sources[0])
            rows = [([a[w] for a in sources], [a[w] for a in targets], w) for w in range(words)]
        elif name == "get":  # the executor takes the places of the one for the other's
            rows = []
            for n, (src, dst) in enumerate(zip(op["src_buff"], op["dst_buff"], strict=True)):
                swapped = src | {"index": dst["index"]}, dst | {"index": src["index"]}
                froms = self._area(rank, number, op, swapped[0], False, n, "src")
                tos = self._area(rank, number, op, swapped[1], False, n, "dst")
                rows += [([froms[w]], [tos[w]], w) for w in range(len(sources[n]))]
        elif name == "rppkt":
            rows = [([sources[0][w]], [t[w] for t in targets], w) for w in range(len(sources[0]))]
        else:
            rows = []
            for n in range(len(targets)):
                if n >= len(sources):
                    raise Fault(f"{name} has fewer sources than targets")
                many = len(targets[n]) if name == "put" else len(sources[n])
                rows += [([sources[n][w]], [targets[n][w]], w) for w in range(many)]
        for froms, tos, word in rows:
            lane = (word + word // self.words) % self.lanes
            threads[lane].append(Act("read", sources=tuple(froms)))
            threads[lane].append(Act("write", targets=tuple(tos)))

    def _area(
        self, rank: int, number: int, op: Fields, area: Fields, packet: bool, n: int, side: str
    ) -> list[int]:
        """The cells of an area, as far as the longest of its operation goes."""
        block = self.gpus[rank]["threadblocks"][number]
        owner = rank
        buffer = area.get("type")
        if "buffer_id" in area:
            groups = block.get("remote_buffer_refs", [])
            refs = [r for g in groups for r in g["remote_buffer_ids"]]
            if not 0 <= area["buffer_id"] < len(refs):
                raise Fault(f"rank {rank} block {number} has no buffer {area['buffer_id']}")
            remote = self.gpus[rank]["remote_buffers"][refs[area["buffer_id"]]]
            owner = remote["rank"]
            buffer = remote["type"]
        # the size is that of the first source, but of a put and a get that of each
        sizes = op["src_buff"][0]["size"]
        if op["name"] == "put":
            sizes = op["dst_buff"][n]["size"]
        elif op["name"] not in SUMS | {"rppkt"} and n < len(op["src_buff"]):
            sizes = op["src_buff"][n]["size"]
        low = 0
        size = sizes * self.words
        offset = 0
        if "tbg_info" in op:
            part = op["tbg_info"]["tb_id"]
            parts = op["tbg_info"]["tbg_size"]
            own = area["size"] * self.words
            offset = own * part // parts
            low = size * part // parts
            size = size * (part + 1) // parts - low
        start = area["index"] * self.words + offset
        name = "p" if packet and buffer == "s" else str(buffer)
        return [self._cell(owner, name, start + w) for w in range(size)]


def look(plan: Fields, states: int = STATES, thorough: bool = True) -> Seen:
    """Look at a plan; if not thorough, one run that goes wrong is enough."""
    seen = Seen()
    try:
        threads = Plan(plan, seed=len(str(plan)))
        wanted = threads.wanted()
    except Fault as fault:
        seen.fault = str(fault)
        return seen
    machine = Machine(
        threads.threads, threads.counters, threads.memory, threads.packets, threads.spoils
    )
    if not thorough:
        hangs, ends, counters = machine.sample(FEW, seed=1)
        if hangs or any(any(end[c] != value for c, value in wanted.items()) for end in ends):
            seen.hangs = "some run" if hangs else ""
            seen.wrong = "" if hangs else "some run"
            seen.decided = False
            return seen
    try:
        hangs, ends, counters = machine.explore(states)
    except Undecided:
        seen.decided = False
        hangs, ends, counters = machine.sample(SCHEDULES, seed=1)
    seen.races = machine.race
    if hangs:
        seen.hangs = "some run"
    if any(any(end[cell] != value for cell, value in wanted.items()) for end in ends):
        seen.wrong = "some run"
    for end in counters:
        for key, at in threads.numbers.items():
            assert isinstance(key, tuple)
            if key[0] == "signals":
                waited = threads.numbers.get(("waits", *key[1:]))
                if end[at] != (0 if waited is None else end[waited]):
                    seen.fault = "a signal is left over"
            elif key[0] == "value" and end[at] != threads.counters[at]:
                seen.fault = f"semaphore {key[2]} of rank {key[1]} ends at another value"
    return seen


def look_at(text: bytes, states: int = STATES) -> Seen:
    """Look at the text of a plan."""
    return look(json.loads(text), states)
