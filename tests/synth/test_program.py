"""Each rank's own program, made without the others: together they are the schedule."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.synth.straggler.generate import generate
from latecomer.synth.straggler.program import program


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 70), st.integers(1, 20), st.data())
def test_all_programs_together_are_the_file(n, k, data):
    late = data.draw(st.integers(0, n - 1))
    phases = generate(n, late=late, chunks=k, owners="free").phases
    programs = [program(n, rank, chunks=k, late=late) for rank in range(n)]
    rounds = [moves for phase in phases for moves in phase.rounds]
    for of_rank in programs:
        assert len(of_rank.completion) == len(phases[-1].rounds)
        assert len(of_rank.waiting + of_rank.completion) == len(rounds)

    for t, moves in enumerate(rounds):
        sent = set()
        received = set()
        for of_rank in programs:
            own_round = (of_rank.waiting + of_rank.completion)[t]
            if (send := own_round.send) is not None:
                sent.add((of_rank.rank, send.peer, send.chunk, send.op))
            if (receive := own_round.receive) is not None:
                received.add((receive.peer, of_rank.rank, receive.chunk, receive.op))
        assert sent == received == {(m.src, m.dst, m.chunk, m.op) for m in moves}


@pytest.mark.parametrize("rank", [0, 524_291, 999_998, 999_999])
def test_partners_agree_among_a_million(rank):
    own_program = program(10**6, rank, chunks=60)
    assert len(own_program.completion) == 60 + 20 - 1
    t, send = next(
        (t, own_round.send) for t, own_round in enumerate(own_program.completion) if own_round.send
    )
    receive = program(10**6, send.peer, chunks=60).completion[t].receive
    assert (receive.peer, receive.chunk, receive.op) == (rank, send.chunk, send.op)


def test_command(synth):
    code, out, _ = synth("program", "--n", "8", "--rank", "3", "--chunks", "4")
    assert (code, out[:40]) == (0, "rank 3 of 8 in 4 chunks, rank 7 late: 7 ")
    assert "optimal (theorem: ClosedForm" in out

    _, out, _ = synth("program", "--n=1000", "--rank=3", "--bytes=1MiB", "--json")
    facts = json.loads(out)
    assert (facts["ranks"], facts["late"]) == (1000, 999)
    assert len(facts["completion"]) == facts["chunks"] + 9
