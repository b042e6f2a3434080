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

from runtime.optireduce.options import HEADER_BYTES
from runtime.optireduce.udp.datagram import MAGIC, PACKED, VERSION
from runtime.optireduce.udp.events import Burst, Control, DatagramHeader, Type
from runtime.optireduce.udp.placement import Placer
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
    found = []
    for sender in (1, 2):
        codec = Host(sender, 3, OPTIONS, key).codec
        for stage in (0, 1):
            source = shard(sender, stage)
            count = -(-len(source) // PAYLOAD)
            header = DatagramHeader(stage, receiver=0, operation=operation)
            passed = np.zeros(count, np.int64)
            burst = Burst(header, source, first=0, marks_from=count - 1, passed=passed)
            found += [row.tobytes() for row in codec.burst(burst)]
            end = Control(Type.END, stage, peer=0, operation=operation)
            credit = Control(Type.CREDIT, stage, peer=0, operation=operation, passed=1000)
            found += [codec.control(end), codec.control(credit)]
    return found


GENUINE = {(o, key): genuine(o, key) for o in OPEN for key in (b"", KEY)}


def forged(program, operation):
    """A header with chosen fields, and the payload that belongs to it if all of them are right."""
    kind = program.pick(2, 3, 2, 3, 4, 5, 6, 7, program.number())
    sender = program.pick(1, 2, 1, 2, 0, 3, program.number(2))
    named = program.pick(
        operation, operation, operation, (operation + 1) % 2**64, operation - 1, program.number(8)
    )
    offset = program.number() * program.pick(PAYLOAD, PAYLOAD, 1, 2**24)
    flags = program.pick(0, 0, 1, 2, 4, 6, program.number())
    incast = program.number()
    expected_us, tag = (program.pick(0, program.number(4)) for _ in range(2))
    length = program.pick(
        PAYLOAD, PAYLOAD, 200 % PAYLOAD, 150 % PAYLOAD, 330 % PAYLOAD, program.number(2)
    )
    envelope = MAGIC, VERSION, kind, sender, 0, SESSION
    about = named, offset, length, flags, incast, expected_us, 0, tag
    header = bytearray(PACKED.pack(*envelope, *about))
    wrong = program.number()
    if wrong < 8:  # something of the envelope
        header[program.pick(0, 2, 6, 8, 15)] ^= 1 + wrong
    if program.pick(False, False, False, True):
        return bytes(header)
    stage = kind & 1
    payload = np.full(PAYLOAD, 254, np.uint8)
    if sender in (1, 2):
        source = shard(sender, stage)
        part = source[offset : offset + PAYLOAD]
        fits = len(part) == length and offset % PAYLOAD == 0
        ours = wrong >= 8 and named == operation
        payload[: len(part)] = part if fits and ours else ~part
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
    operation = program.pick(*OPEN)
    key = program.pick(b"", KEY)
    host = Host(0, 3, OPTIONS, key)
    host.enter(0, operation, list(SIZES), 0.0)
    bucket = host.buckets[operation]
    bucket.move(guard)
    host.placer.open(operation, bucket.expected())  # in the other memory
    now = 0.0
    batch = []
    answers = []

    def feed():
        nonlocal batch
        for size in sorted({len(one) for one in batch if one}):
            rows = np.frombuffer(b"".join(d for d in batch if len(d) == size), np.uint8)
            host.receive(guard(rows).reshape(-1, size), now)
        batch = []
        answers.extend(host.advance(now))

    while not program.over:
        choice = program.number() % 8
        if choice == 0:
            batch.append(program.read(program.number()))
        elif choice < 4:
            known = GENUINE[operation, key]
            whole = known[program.number() % len(known)]
            batch.append(changed(program, whole) if key else whole)
        elif choice < 6:
            batch.append(forged(program, operation))
        else:
            feed()
            now = min(now + program.number() / 4000, 0.9 * DEADLINE_S)
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
    place = Placer.place

    def careless(self, shard, batch):
        offsets = batch.offsets // PAYLOAD * PAYLOAD
        return place(self, shard, batch._replace(offsets=offsets))

    Placer.place = careless


def instrument(atheris):
    """Let atheris see the branches of UBT and of the target; how many functions."""
    for function in (attack, forged, changed):
        globals()[function.__name__] = atheris.instrument_func(function)
    modules = [m for name, m in sys.modules.items() if name.startswith("runtime.optireduce.udp")]
    classes = {value for m in modules for value in vars(m).values() if isinstance(value, type)}
    found = [
        (owner, key, value)
        for owner in (*modules, *(c for c in classes if sys.modules[c.__module__] in modules))
        for key, value in vars(owner).items()
        if isinstance(value, FunctionType)
        if value.__module__ == getattr(owner, "__module__", owner.__name__)
    ]
    for owner, key, value in found:
        setattr(owner, key, atheris.instrument_func(value))
    return len(found)


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
    beside = checked.target if compiled else lambda function: function
    if file:
        beside(attack)(file.read_bytes())
        return
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is missing: pip install -c constraints.txt -e '.[fuzz]'")
    out.mkdir(parents=True, exist_ok=True)
    print(f"seed {seed}, {instrument(atheris)} functions instrumented", flush=True)
    argv = [f"-runs={runs}", f"-seed={seed}", f"-max_total_time={seconds}"]
    argv += ["-max_len=400", "-len_control=0", f"-artifact_prefix={out}/"]
    atheris.Setup([sys.argv[0], *argv], beside(attack))
    atheris.Fuzz()


if __name__ == "__main__":
    typer.run(main)
