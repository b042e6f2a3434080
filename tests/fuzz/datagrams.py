"""Datagrams of an attacker against one rank of UBT, from a string of bytes.

    python -m tests.fuzz.datagrams [--runs 100000] [--seconds 0] [--seed 1]     (needs atheris)
    python -m tests.fuzz.datagrams FILE                                         (once, from a file)
    python -m tests.fuzz.datagrams --compiled ...           (both data paths, the compiled checked)

The string is a program: noise, mutants of genuine datagrams, headers with chosen fields, in
batches, while the clock moves. In a program without tags a header may be anything, and the payload
is the right one only if every field is: so whatever is placed against the rules shows. With tags
genuine datagrams are changed at will, and none of the changed ones may count. Checked after it: no
exception; what is marked as arrived is right and all else untouched; every stage is over by t_B.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import FunctionType
from typing import Annotated

import numpy as np
import typer

from latecomer.runtime.optireduce.options import HEADER_BYTES
from latecomer.runtime.optireduce.udp.datagram import MAGIC, PACKED, VERSION
from latecomer.runtime.optireduce.udp.events import Burst, Control, DatagramHeader, Type
from latecomer.runtime.optireduce.udp.placement import Placer
from tests.runtime.optireduce.compiled import checked
from tests.runtime.optireduce.simulation import SESSION, Host, content, options, result

SIZES = (200, 150, 330)  # bytes of the ranks' shards; rank 0 is attacked
OPTIONS = options()
PAYLOAD = OPTIONS.payload_bytes
KEY = b"k" * 16
OPEN = (8, 2**64 - 1)  # names of the operation that is open; after the second they wrap
DEADLINE_S = OPTIONS.absence_s + 2 * OPTIONS.bound_s


class Program(io.BytesIO):
    """Reads numbers off a string of bytes; zeros after its end."""

    @property
    def over(self):
        return self.tell() >= len(self.getbuffer())

    def number(self, count=1):
        return int.from_bytes(self.read(count), "little")

    def pick(self, *values):
        return values[self.number() % len(values)]


def shard(sender, stage):
    """What a sender's datagrams of a stage bring to rank 0."""
    return content(sender, 0, SIZES[0]) if stage == 0 else result(sender, SIZES[sender])


def genuine(operation, key):
    """All that ranks 1 and 2 have to say to rank 0."""
    datagrams = []
    for sender in (1, 2):
        codec = Host(sender, 3, OPTIONS, key).codec
        for stage in (0, 1):
            source = shard(sender, stage)
            count = -(-len(source) // PAYLOAD)
            header = DatagramHeader(stage, receiver=0, operation=operation)
            passed = np.zeros(count, np.int64)
            burst = Burst(header, source, first=0, marks_from=count - 1, passed=passed)
            datagrams += [row.tobytes() for row in codec.burst(burst)]
            end = Control(Type.END, stage, peer=0, operation=operation)
            credit = Control(Type.CREDIT, stage, peer=0, operation=operation, passed=1000)
            datagrams += [codec.control(end), codec.control(credit)]
    return datagrams


GENUINE = {}
for open_operation in OPEN:
    GENUINE[open_operation, b""] = genuine(open_operation, b"")
    GENUINE[open_operation, KEY] = genuine(open_operation, KEY)


def forged(program, operation):
    """A header with chosen fields, and the payload that belongs to it if all of them are right."""
    kind = program.pick(2, 3, 2, 3, 4, 5, 6, 7, program.number())
    sender = program.pick(1, 2, 1, 2, 0, 3, program.number(2))
    named_operation = program.pick(
        operation, operation, operation, (operation + 1) % 2**64, operation - 1, program.number(8)
    )
    offset = program.number() * program.pick(PAYLOAD, PAYLOAD, 1, 2**24)
    flags = program.pick(0, 0, 1, 2, 4, 6, program.number())
    incast = program.number()
    expected_us = program.pick(0, program.number(4))
    tag = program.pick(0, program.number(4))
    length = program.pick(
        PAYLOAD, PAYLOAD, 200 % PAYLOAD, 150 % PAYLOAD, 330 % PAYLOAD, program.number(2)
    )
    receiver = 0
    passed = 0
    packed = PACKED.pack(
        MAGIC,
        VERSION,
        kind,
        sender,
        receiver,
        SESSION,
        named_operation,
        offset,
        length,
        flags,
        incast,
        expected_us,
        passed,
        tag,
    )

    header = bytearray(packed)
    corruption = program.number()
    is_corrupt = corruption < 8
    if is_corrupt:  # something before the operation's name
        header[program.pick(0, 2, 6, 8, 15)] ^= 1 + corruption
    if program.pick(False, False, False, True):
        return bytes(header)

    stage = kind & 1
    payload = np.full(PAYLOAD, 254, np.uint8)
    if sender in (1, 2):
        source = shard(sender, stage)
        part = source[offset : offset + PAYLOAD]
        fits = len(part) == length and offset % PAYLOAD == 0
        is_right = fits and not is_corrupt and named_operation == operation
        payload[: len(part)] = part if is_right else ~part
    return bytes(header) + payload.tobytes()


def changed(program, data):
    """A genuine datagram with some bytes set, or cut, or longer."""
    mutant = bytearray(data)
    for _ in range(program.number() % 4):
        mutant[program.number() % len(mutant)] = program.number()
    return bytes(mutant[: program.pick(None, None, None, 0, 1, HEADER_BYTES, 100)])


def attack(data, guard=lambda array: array):
    """Run one program; all that came of it. ``guard`` may move arrays to other memory."""
    program = Program(data)
    first_open, last_open = OPEN
    operation = program.pick(first_open, last_open)
    key = program.pick(b"", KEY)

    host = Host(0, 3, OPTIONS, key)
    host.enter(0, operation, list(SIZES), 0.0)
    bucket = host.buckets[operation]
    bucket.move(guard)
    host.placer.open(operation, bucket.expected())  # in the other memory

    now_s = 0.0
    batch = []
    answers = []

    def feed():
        """Hand over the batch: the host takes datagrams of one length at a time."""
        nonlocal batch
        for size in sorted({len(datagram) for datagram in batch if datagram}):
            of_size = [datagram for datagram in batch if len(datagram) == size]
            rows = np.frombuffer(b"".join(of_size), np.uint8)
            host.receive(guard(rows).reshape(-1, size), now_s)
        batch = []
        answers.extend(host.advance(now_s))

    while not program.over:
        choice = program.number() % 8
        if choice == 0:
            batch.append(program.read(program.number()))
        elif choice < 4:
            datagrams = GENUINE[operation, key]
            datagram = datagrams[program.number() % len(datagrams)]
            if key:
                datagram = changed(program, datagram)
            batch.append(datagram)
        elif choice < 6:
            batch.append(forged(program, operation))
        else:
            feed()
            now_s = min(now_s + program.number() / 4000, 0.9 * DEADLINE_S)
    feed()

    for stage, arrived in zip(bucket.stages, bucket.arrived, strict=True):
        for peer, progress in stage.senders.items():
            assert progress.seen == arrived[peer].sum() <= progress.count

    host.advance(DEADLINE_S + 1e-6)
    assert all(stage.end is not None for stage in bucket.stages), "not over by t_B"
    assert operation in host.over_s, "still open after t_B"
    bucket.check_results()
    return answers, +host.placer.dropped, [shard.tobytes() for shard in bucket.shards]


def plant():
    """A fault to be found: offsets need not be those of a datagram."""
    placed = Placer.place

    def careless(self, shard, batch):
        offsets = batch.offsets // PAYLOAD * PAYLOAD
        return placed(self, shard, batch._replace(offsets=offsets))

    Placer.place = careless


def instrument(atheris):
    """Let atheris see the branches of UBT and of the target; how many functions."""
    for function in (attack, forged, changed):
        globals()[function.__name__] = atheris.instrument_func(function)
    modules = [
        m for name, m in sys.modules.items() if name.startswith("latecomer.runtime.optireduce.udp")
    ]
    classes = set()
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, type) and sys.modules[value.__module__] in modules:
                classes.add(value)

    count = 0
    for owner in (*modules, *classes):
        owners_module = getattr(owner, "__module__", owner.__name__)
        for name, value in list(vars(owner).items()):
            if isinstance(value, FunctionType) and value.__module__ == owners_module:
                setattr(owner, name, atheris.instrument_func(value))
                count += 1
    return count


def target(compiled):
    """What runs a program. Only after :func:`instrument`, which replaces ``attack``."""
    if compiled:
        return checked.target(attack)
    return attack


def main(
    file: Annotated[Path | None, typer.Argument(help="run this one program")] = None,
    runs: int = 100_000,
    seconds: Annotated[int, typer.Option(help="at most; 0: no limit")] = 0,
    seed: int = 1,
    out: Annotated[Path, typer.Option(help="for what fails")] = Path("out/fuzz"),
    planted: Annotated[bool, typer.Option("--planted", help="a fault that it has to find")] = False,
    compiled: Annotated[bool, typer.Option("--compiled", help="both data paths")] = False,
):
    """Datagrams of an attacker against one rank of UBT."""
    if planted:
        plant()
    if file:
        target(compiled)(file.read_bytes())
        return

    try:
        import atheris
    except ImportError:
        sys.exit("atheris is missing: pip install -c constraints.txt -e '.[fuzz]'")

    out.mkdir(parents=True, exist_ok=True)
    print(f"seed {seed}, {instrument(atheris)} functions instrumented", flush=True)
    argv = [f"-runs={runs}", f"-seed={seed}", f"-max_total_time={seconds}"]
    argv += ["-max_len=400", "-len_control=0", f"-artifact_prefix={out}/"]
    atheris.Setup([sys.argv[0], *argv], target(compiled))
    atheris.Fuzz()


if __name__ == "__main__":
    typer.run(main)
