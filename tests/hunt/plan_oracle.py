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
from tests.hunt.outcome import Outcome
from tests.hunt.threads import ABSENT, Act, Machine

Fields = dict[str, Any]
STATES = 150
"""More states than these are not explored, and the plan is undecided."""
SCHEDULES = 20
"""Interleavings drawn at random of what has too many states."""
FEW_SCHEDULES = 3
"""Interleavings of what is refuted already, where one that goes wrong is enough."""
SUMS = {"re", "res", "rre", "rres", "respkt", "repkt", "recpkt", "recspkt"}
INTO_PACKETS = {"ppkt": 0, "rppkt": 0, "cpkt": 0, "respkt": 1, "recpkt": 1, "recspkt": 1}
FROM_PACKETS = {"rppkt": 0, "upkt": 0, "respkt": 1, "repkt": 1, "recpkt": 1, "recspkt": 1}
NO_PACKETS = 99
"""Instead of the number of the first area that is in packets: more areas than there are."""

Move = tuple[list[int], list[int], int]


class Fault(Exception):
    """What no executor defines."""


class Plan:
    """A plan as threads, counters and cells."""

    def __init__(self, plan: Fields, seed: int) -> None:
        self.plan = plan
        self.gpus = plan["gpus"]
        self.lanes = 2
        parts = 1
        for gpu in self.gpus:
            for block in gpu["threadblocks"]:
                for op in block["ops"]:
                    ids = op.get("channel_ids", op.get("semaphore_ids", ()))
                    self.lanes = max(self.lanes, len(ids))
                    if "tbg_info" in op:
                        parts = lcm(parts, op["tbg_info"]["tbg_size"])
        self.words = self.lanes * parts  # of a chunk, so that it can be cut for all of these

        self._cells(random.Random(seed))
        self.counters: list[int] = []
        self.numbers: dict[object, int] = {}
        self.threads: list[list[Act]] = []
        self._users()
        for rank, gpu in enumerate(self.gpus):
            for number, block in enumerate(gpu["threadblocks"]):
                self.threads += self._block(rank, number, block)

    def machine(self) -> Machine:
        """What runs the threads."""
        return Machine(self.threads, self.counters, self.memory, self.packets, self.spoils)

    # memory

    def _cells(self, draw: random.Random) -> None:
        total = self._lay_out()
        self.memory: list[Value] = [JUNK] * total
        for packet in self.packets:
            self.memory[packet] = ABSENT

        self.inputs = {}
        for rank, gpu in enumerate(self.gpus):
            for word in range(gpu["input_chunks"] * self.words):
                value = draw.randrange(1, 2**61)
                self.inputs[rank, word] = value
                self.memory[self._cell(rank, "i", word)] = value

    def _lay_out(self) -> int:
        """Give every buffer its cells, and note what lies beneath packets; returns how many."""
        total = 0
        self.starts: dict[tuple[int, str], tuple[int, int]] = {}
        self.packets: set[int] = set()
        self.spoils: dict[int, tuple[int, ...]] = {}
        for rank, gpu in enumerate(self.gpus):
            chunks = {"i": gpu["input_chunks"], "o": gpu["output_chunks"]}
            if self.plan["inplace"]:
                chunks["o"] = max(chunks.values())
            chunks["s"] = 2 * gpu["scratch_chunks"]
            chunks["p"] = gpu["scratch_chunks"]
            for name, count in chunks.items():
                self.starts[rank, name] = (total, count)
                total += count * self.words

            plain, _ = self.starts[rank, "s"]
            packets, _ = self.starts[rank, "p"]
            for word in range(gpu["scratch_chunks"] * self.words):
                packet = packets + word
                beneath = (plain + 2 * word, plain + 2 * word + 1)
                self.packets.add(packet)
                self.spoils[packet] = beneath
                for cell in beneath:
                    self.spoils[cell] = (packet,)
        return total

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
        wanted = {}
        for rank in ranks:
            if self.plan["collective"] == "allreduce":
                for word in range(words):
                    total = sum(self.inputs[source, word] for source in ranks)
                    wanted[self._cell(rank, "o", word)] = total
            else:
                for source in ranks:
                    for word in range(words):
                        value = self.inputs[source, word]
                        wanted[self._cell(rank, "o", source * words + word)] = value
        return wanted

    # counters

    def _counter(self, key: object, start: int = 0, count: int = 1) -> int:
        number = self.numbers.get(key)
        if number is None:
            number = len(self.counters)
            self.numbers[key] = number
            self.counters += [start] * count
        return number

    def _users(self) -> None:
        """Which channels, semaphores and barriers are used so that order matters."""
        waiters: dict[object, set[object]] = {}
        barriers: dict[tuple[int, int], dict[int, list[int]]] = {}
        for rank, gpu in enumerate(self.gpus):
            for number, block in enumerate(gpu["threadblocks"]):
                for op in block["ops"]:
                    if op["name"] == "barrier":
                        uses = barriers.setdefault((rank, op["barrier_id"]), {})
                        uses.setdefault(number, []).append(op["num_threadblocks"])
                    else:
                        self._note_waiters(waiters, rank, number, op)

        self.contended = {key for key, threads in waiters.items() if len(threads) > 1}
        for (rank, barrier), uses in barriers.items():
            counts = set()
            times = set()
            for counts_of_block in uses.values():
                counts.update(counts_of_block)
                times.add(len(counts_of_block))
            if counts != {len(uses)} or len(times) > 1:
                self.contended.add(("barrier", rank, barrier))

    def _note_waiters(
        self, waiters: dict[object, set[object]], rank: int, number: int, op: Fields
    ) -> None:
        """Which threads an operation lets wait for a channel or a semaphore."""
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

    def _initial(self, rank: int, semaphore: int) -> int:
        semaphores = self.gpus[rank].get("semaphores", [])
        if not 0 <= semaphore < len(semaphores):
            raise Fault(f"rank {rank} has no semaphore {semaphore}")
        return int(semaphores[semaphore]["init_value"])

    def _key(self, key: object) -> int | None:
        return self._counter(key) if key in self.contended else None

    def _channel(self, rank: int, block: int, local: int) -> int:
        """A channel's number at its rank, from the number that a block gives it."""
        groups = self.gpus[rank]["threadblocks"][block].get("channels", [])
        ids = []
        for group in groups:
            if group["channel_type"] == "memory":
                ids += group["channel_ids"]
        if not 0 <= local < len(ids):
            raise Fault(f"rank {rank} block {block} has no channel {local}")
        return int(ids[local])

    def _peers(self, rank: int) -> list[int]:
        """Whom each channel of a rank connects it to."""
        peers = []
        for group in self.gpus[rank].get("channels", []):
            if group["channel_type"] == "memory":
                peers += group["connected_to"]
        return peers

    def _other_end(self, rank: int, channel: int) -> tuple[int, int]:
        peers = self._peers(rank)
        if not 0 <= channel < len(peers):
            raise Fault(f"rank {rank} has no channel {channel}")
        peer = peers[channel]
        nth = peers[:channel].count(peer)
        channels_back = [n for n, end in enumerate(self._peers(peer)) if end == rank]
        if nth >= len(channels_back):
            raise Fault(f"channel {channel} of rank {rank} has no other end")
        return peer, channels_back[nth]

    # threads

    def _block(self, rank: int, number: int, block: Fields) -> list[list[Act]]:
        """What each thread of a block does."""
        threads: list[list[Act]] = [[] for _ in range(self.lanes)]
        met = self._counter(("met", rank, number))
        meetings = 0
        for op in block["ops"]:
            name = op["name"]
            if name in {"nop", "barrier"}:
                meetings += 1
                self._meet(threads, met, meetings)
                if name == "barrier" and op["num_threadblocks"] != 1:
                    self._barrier(threads[0], rank, op)
                    meetings += 1
                    self._meet(threads, met, meetings)
            elif name in {"signal", "rlxsignal"}:
                for lane, local in enumerate(op["channel_ids"]):
                    end = self._other_end(rank, self._channel(rank, number, local))
                    threads[lane].append(Act("raise", self._counter(("signals", *end))))
            elif name in {"wait", "rlxwait"}:
                for lane, local in enumerate(op["channel_ids"]):
                    self._wait(threads[lane], rank, self._channel(rank, number, local))
            elif name in {"sem_release", "sem_acquire"}:
                for lane, semaphore in enumerate(op["semaphore_ids"]):
                    self._semaphore(threads[lane], rank, semaphore, name)
            elif name != "flush":
                self._data(threads, rank, number, op)
        return threads

    def _barrier(self, thread: list[Act], rank: int, op: Fields) -> None:
        """The device's barrier, which one thread of a block passes for all."""
        barrier = ("barrier", rank, op["barrier_id"])
        syncer = self._counter(("syncer", *barrier), count=4)
        key = self._key(barrier)
        thread.append(Act("arrive", syncer, key=key))
        thread.append(Act("leave", syncer, op["num_threadblocks"], key=key))

    def _wait(self, thread: list[Act], rank: int, channel: int) -> None:
        """Wait for one signal more on a channel than was waited for so far."""
        key = self._key(("channel", rank, channel))
        ticket = self._counter(("waits", rank, channel))
        if key is None:
            thread.append(Act("ticket", ticket))
        else:  # what is waited for is counted in plain memory
            thread.append(Act("load", ticket, key=key))
            thread.append(Act("store", ticket, key=key))
        thread.append(Act("token", self._counter(("signals", rank, channel)), key=key))

    def _semaphore(self, thread: list[Act], rank: int, semaphore: int, name: str) -> None:
        """Release or acquire a semaphore."""
        start = self._initial(rank, semaphore)
        value = self._counter(("value", rank, semaphore), start)
        key = self._key(("semaphore", rank, semaphore))
        if name == "sem_release":
            thread.append(Act("raise", value, key=key))
        else:
            thread.append(Act("acquire", value, key=key))
            thread.append(Act("poll", value, key=key))

    def _meet(self, threads: list[list[Act]], met: int, meetings: int) -> None:
        for thread in threads:
            thread.append(Act("raise", met))
            thread.append(Act("at least", met, meetings * self.lanes))

    def _data(self, threads: list[list[Act]], rank: int, number: int, op: Fields) -> None:
        """Read and write the words of an operation, each word by one thread."""
        for sources, targets, word in self._moves(rank, number, op):
            lane = (word + word // self.words) % self.lanes
            threads[lane].append(Act("read", sources=tuple(sources)))
            threads[lane].append(Act("write", targets=tuple(targets)))

    def _moves(self, rank: int, number: int, op: Fields) -> list[Move]:
        """Per word: the cells that are added up, the cells that get the sum, and its number."""
        name = op["name"]
        first_read = FROM_PACKETS.get(name, NO_PACKETS)
        first_written = INTO_PACKETS.get(name, NO_PACKETS)
        sources = []
        for n, area in enumerate(op["src_buff"]):
            sources.append(self._area(rank, number, op, area, n >= first_read, n))
        targets = []
        for n, area in enumerate(op["dst_buff"]):
            targets.append(self._area(rank, number, op, area, n >= first_written, n))

        moves: list[Move] = []
        if name in SUMS:
            for word in range(len(sources[0])):
                added = [area[word] for area in sources]
                moves.append((added, [area[word] for area in targets], word))
        elif name == "get":
            return self._moves_of_get(rank, number, op, sources)
        elif name == "rppkt":
            for word, source in enumerate(sources[0]):
                moves.append(([source], [area[word] for area in targets], word))
        else:
            for n, target in enumerate(targets):
                if n >= len(sources):
                    raise Fault(f"{name} has fewer sources than targets")
                words = len(target) if name == "put" else len(sources[n])
                moves += [([sources[n][word]], [target[word]], word) for word in range(words)]
        return moves

    def _moves_of_get(
        self, rank: int, number: int, op: Fields, sources: list[list[int]]
    ) -> list[Move]:
        """The executor reads at the target's index in the source, and writes the other way."""
        moves: list[Move] = []
        for n, (src, dst) in enumerate(zip(op["src_buff"], op["dst_buff"], strict=True)):
            read_area = src | {"index": dst["index"]}
            written_area = dst | {"index": src["index"]}
            read_cells = self._area(rank, number, op, read_area, False, n)
            written_cells = self._area(rank, number, op, written_area, False, n)
            for word in range(len(sources[n])):
                moves.append(([read_cells[word]], [written_cells[word]], word))
        return moves

    def _area(
        self, rank: int, number: int, op: Fields, area: Fields, packet: bool, n: int
    ) -> list[int]:
        """The cells of area n of an operation, as far as the longest of its operation goes."""
        owner, buffer = self._buffer(rank, number, area)

        # the size is that of the first source, but of a put and a get that of each
        chunks = op["src_buff"][0]["size"]
        if op["name"] == "put":
            chunks = op["dst_buff"][n]["size"]
        elif op["name"] not in SUMS | {"rppkt"} and n < len(op["src_buff"]):
            chunks = op["src_buff"][n]["size"]

        words = chunks * self.words
        offset = 0
        if "tbg_info" in op:
            part = op["tbg_info"]["tb_id"]
            parts = op["tbg_info"]["tbg_size"]
            offset = area["size"] * self.words * part // parts
            low = words * part // parts
            high = words * (part + 1) // parts
            words = high - low

        start = area["index"] * self.words + offset
        if packet and buffer == "s":
            buffer = "p"
        return [self._cell(owner, buffer, start + word) for word in range(words)]

    def _buffer(self, rank: int, number: int, area: Fields) -> tuple[int, str]:
        """Whose buffer an area is in, and which."""
        if "buffer_id" not in area:
            return rank, str(area.get("type"))

        refs = []
        for group in self.gpus[rank]["threadblocks"][number].get("remote_buffer_refs", []):
            refs += group["remote_buffer_ids"]
        if not 0 <= area["buffer_id"] < len(refs):
            raise Fault(f"rank {rank} block {number} has no buffer {area['buffer_id']}")
        remote = self.gpus[rank]["remote_buffers"][refs[area["buffer_id"]]]
        return remote["rank"], str(remote["type"])


def look(plan: Fields, states: int = STATES, thorough: bool = True) -> Outcome:
    """Look at a plan; if not thorough, one run that goes wrong is enough."""
    outcome = Outcome()
    try:
        program = Plan(plan, seed=len(str(plan)))
        wanted = program.wanted()
    except Fault as fault:
        outcome.fault = str(fault)
        return outcome

    machine = program.machine()
    if not thorough:
        hangs, ends, counters = machine.sample(FEW_SCHEDULES, seed=1)
        if hangs or not _all_right(ends, wanted):
            outcome.hangs = "some run" if hangs else ""
            outcome.wrong = "" if hangs else "some run"
            outcome.decided = False
            return outcome

    try:
        hangs, ends, counters = machine.explore(states)
    except Undecided:
        outcome.decided = False
        hangs, ends, counters = machine.sample(SCHEDULES, seed=1)

    outcome.races = machine.race
    if hangs:
        outcome.hangs = "some run"
    if not _all_right(ends, wanted):
        outcome.wrong = "some run"
    for values in counters:
        fault_of_counters = _fault_of_counters(program, values)
        if fault_of_counters:
            outcome.fault = fault_of_counters
    return outcome


def _all_right(ends: set[tuple[Value, ...]], wanted: dict[int, int]) -> bool:
    return all(_right(memory, wanted) for memory in ends)


def _right(memory: tuple[Value, ...], wanted: dict[int, int]) -> bool:
    return all(memory[cell] == value for cell, value in wanted.items())


def _fault_of_counters(program: Plan, values: tuple[int, ...]) -> str:
    """What is wrong with the counters at a run's end; empty: nothing.

    A signal that is left over would end a wait of the next run of the same plan.
    """
    fault = ""
    for key, number in program.numbers.items():
        assert isinstance(key, tuple)
        if key[0] == "signals":
            waits = program.numbers.get(("waits", *key[1:]))
            waited = 0 if waits is None else values[waits]
            if values[number] != waited:
                fault = "a signal is left over"
        elif key[0] == "value" and values[number] != program.counters[number]:
            fault = f"semaphore {key[2]} of rank {key[1]} ends at another value"
    return fault


def look_at(text: bytes, states: int = STATES) -> Outcome:
    """Look at the text of a plan."""
    return look(json.loads(text), states)
