"""Each rank's own program, made without the others: together they are the schedule."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.straggler.generate import generate
from synth.straggler.program import program


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 70), st.integers(1, 20), st.data())
def test_all_programs_together_are_the_file(n, k, data):
    late = data.draw(st.integers(0, n - 1))
    phases = generate(n, late=late, chunks=k, owners="free").phases
    programs = [program(n, rank, chunks=k, late=late) for rank in range(n)]
    rounds = [moves for phase in phases for moves in phase.rounds]
    assert {len(made.completion) for made in programs} == {len(phases[-1].rounds)}
    assert {len(made.waiting + made.completion) for made in programs} == {len(rounds)}
    for t, moves in enumerate(rounds):
        sent = set()
        received = set()
        for made in programs:
            own = (made.waiting + made.completion)[t]
            if (step := own.send) is not None:
                sent.add((made.rank, step.peer, step.chunk, step.op))
            if (step := own.receive) is not None:
                received.add((step.peer, made.rank, step.chunk, step.op))
        assert sent == received == {(m.src, m.dst, m.chunk, m.op) for m in moves}


@pytest.mark.parametrize("rank", [0, 524_291, 999_998, 999_999])
def test_partners_agree_among_a_million(rank):
    made = program(10**6, rank, chunks=60)
    assert len(made.completion) == 60 + 20 - 1
    t, step = next((t, own.send) for t, own in enumerate(made.completion) if own.send)
    other = program(10**6, step.peer, chunks=60).completion[t].receive
    assert (other.peer, other.chunk, other.op) == (rank, step.chunk, step.op)


def test_command(synth):
    code, out, _ = synth("program", "--n", "8", "--rank", "3", "--chunks", "4")
    assert (code, out[:40]) == (0, "rank 3 of 8 in 4 chunks, rank 7 late: 7 ")
    assert "optimal (theorem: ClosedForm" in out
    made = json.loads(synth("program", "--n=1000", "--rank=3", "--bytes=1MiB", "--json")[1])
    assert (made["ranks"], made["late"]) == (1000, 999)
    assert len(made["completion"]) == made["chunks"] + 9
