"""Which data path runs, and what is said about it; ranks with either work together."""

from __future__ import annotations

import logging
import re
from datetime import timedelta

import pytest
import torch
from torch._C._distributed_c10d import PrefixStore

from latecomer.runtime.optireduce.engine import OptiReduceEngine
from latecomer.runtime.optireduce.options import Options
from latecomer.runtime.optireduce.udp.compiled import choice
from latecomer.runtime.optireduce.udp.compiled.choice import choose, fault
from latecomer.runtime.optireduce.udp.data_path import NUMPY
from latecomer.runtime.selftest.audit import Audit
from latecomer.runtime.selftest.conformance import Case
from latecomer.verify.errors import ArgumentError
from tests.runtime.spawning import on_ranks, together

CHOICE = "runtime.optireduce.udp.compiled.choice"
SIZE = 3
WAIT = timedelta(seconds=300)  # against hangs, no claim on speed


@pytest.fixture(autouse=True)
def _anew(monkeypatch):
    monkeypatch.delenv("LATECOMER_COMPILED", raising=False)  # as tests of all else set it
    choice._compiled.cache_clear()
    yield
    choice._compiled.cache_clear()


def test_the_environment_says_it_where_the_option_does_not(monkeypatch):
    monkeypatch.setenv("LATECOMER_COMPILED", "off")
    assert choose("auto").how == "data path numpy, as was asked for"
    monkeypatch.setenv("LATECOMER_COMPILED", "maybe")
    with pytest.raises(ArgumentError, match="LATECOMER_COMPILED = 'maybe': must be auto, on or"):
        choose("auto")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("runtime.compiling.importlib.util.find_spec", None, r"pip install numba"),
        (f"{CHOICE}.platform.machine", "s390x", "no layout of structures is known for s390x"),
        (f"{CHOICE}.sys.byteorder", "big", "little-endian"),
    ],
)
def test_where_it_can_not_be_compiled_numpy_runs_and_says_so_once(
    monkeypatch, caplog, name, value, reason
):
    pytest.importorskip("numba")
    replacement = value if name.endswith("sys.byteorder") else lambda *_: value
    monkeypatch.setattr(f"latecomer.{name}", replacement)
    with caplog.at_level(logging.WARNING, "latecomer"):
        paths = [choose("auto"), choose("auto")]
    assert len(caplog.records) == 1
    assert {path._replace(how="") for path in paths} == {NUMPY._replace(how="")}
    assert re.search(reason, paths[0].how)
    assert re.search(reason, caplog.text)
    with pytest.raises(ArgumentError, match=reason):
        choose("on")


def test_what_reads_or_writes_wrongly_is_not_used(monkeypatch):
    pytest.importorskip("numba")
    from latecomer.runtime.optireduce.udp.compiled import placement, sockets

    class Shifted(sockets.CompiledReader):
        """As if the structures were laid out otherwise."""

        def read(self):
            messages, batches = super().read()
            shifted = [
                sockets.Scattered(batch.buffer, batch.starts + 8, batch.sizes) for batch in batches
            ]
            return messages, shifted

    class Careless(placement.CompiledCodec):
        def write(self, rows, burst):
            super().write(rows, burst)
            rows[0, 41] = 1

    class Unframed(sockets.CompiledSocket):
        """As if the kernel did not segment what it is told to."""

        def send(self, peer, rows):
            self._control[1] = 0
            return super().send(peer, rows)

    compiled = placement.COMPILED
    assert fault(compiled) == ""
    assert fault(NUMPY) == ""
    assert "0 of 6" in fault(compiled._replace(reader=Shifted))
    assert "can't send" in fault(compiled._replace(socket=Unframed))
    assert "wrote" in fault(compiled._replace(codec=Careless))
    monkeypatch.setattr(placement, "COMPILED", compiled._replace(reader=Shifted))
    assert "numpy: it read 0 of 6" in choose("auto").how
    monkeypatch.undo()
    choice._compiled.cache_clear()
    assert choose("on").how == "data path compiled"
    assert choose("off").reader is NUMPY.reader


@pytest.mark.parametrize("tags", [False, True])
@on_ranks(SIZE, timeout_s=100)
def test_ranks_with_either_path_work_together(rank, size, store, tags):
    """Rank 0 has numpy's."""
    with pytest.MonkeyPatch.context() as here:  # these processes run other tests, too
        here.delenv("LATECOMER_COMPILED", raising=False)
        if rank == 0:
            here.setattr(choice, "unfit", lambda: "told to")
        choice._compiled.cache_clear()
        _mixed(rank, size, store, tags)
    choice._compiled.cache_clear()


def _mixed(rank, size, store, tags):
    options = Options(warmup_steps=0, bound_s=5.0, dead_s=90.0, hadamard="off", authenticate=tags)
    engine = OptiReduceEngine(store, rank, size, options=options, timeout_s=60)
    assert ("told to" if rank == 0 else "data path") in engine.how

    engine.ledger.missing = []
    audited = []
    audit = Audit(audited, options.payload_bytes, PrefixStore("audit", store), rank, size)
    for step, dtype in enumerate([torch.float32, torch.bfloat16, torch.float64, torch.float16]):
        case = Case(dtype, 70_001, average=bool(step % 2), exact=False)
        dice = torch.Generator().manual_seed(step)
        inputs = torch.randn(size, case.numel, generator=dice).to(dtype)

        result = inputs[rank].clone()
        engine.submit(result, average=case.average).wait(WAIT)
        audited.append(engine.ledger.missing.pop(0))
        audit(case, list(inputs), result)

    together(store, rank, size, "done")
    engine.close()
    assert not engine.ledger.dropped.get("forged")
