"""The checker of the network ports, accepting and rejecting, and the splitting of rounds."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

import synth
from synth.twolevel.network import fitted, network_ports
from verify import Phase, Schedule, Transfer, Verdict, check


def one_round(*copies: tuple[int, int, int]) -> Schedule:
    """Copies (src, dst, chunk) in the one round of the second phase."""
    phases = (Phase("wait", (), ((),)), Phase("rest", (), ((), tuple(map(copy, copies)))))
    return Schedule(ranks=6, chunks=4, phases=phases)


def copy(move: tuple[int, int, int]) -> Transfer:
    return Transfer(*move, "copy")


NODE_OF = [0, 0, 0, 1, 1, 2]


def test_as_many_as_there_are_ports() -> None:
    schedule = one_round((0, 3, 0), (1, 4, 1), (3, 0, 2), (4, 5, 3), (2, 1, 3))  # last: inside
    assert network_ports(schedule, NODE_OF, 2).verdict is Verdict.PROVED
    refused = network_ports(schedule, NODE_OF, 1).counterexample
    assert refused is not None
    assert (refused.property, refused.phase, refused.round) == ("network_ports", "rest", 1)
    assert refused.found == "node 0 sends 2 or more"
    assert [str(t) for t in refused.transfers] == [
        "rest round 1: 0 -> 3  chunk 0  copy",
        "rest round 1: 1 -> 4  chunk 1  copy",
    ]


def test_receiving_counts_by_itself() -> None:
    refused = network_ports(one_round((0, 4, 0), (5, 3, 1)), NODE_OF, 1).counterexample
    assert refused is not None
    assert (refused.found, refused.rank) == ("node 1 receives 2 or more", 3)


def test_chunks_between_two_ranks_are_one_message() -> None:
    assert network_ports(one_round((0, 3, 0), (0, 3, 1)), NODE_OF, 1).verdict is Verdict.PROVED


@settings(max_examples=30, deadline=None)
@given(
    st.integers(2, 9),
    st.integers(1, 2),
    st.sampled_from(["generate", "ring", "rhd"]),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_fitted_schedules_are_still_right(n, m, name, ports, random) -> None:
    schedule = synth.generate(n, m=m) if name == "generate" else getattr(synth, name)(n)
    node_of = [random.randrange(3) for _ in range(n)]
    result = fitted(schedule, node_of, ports)
    assert check(result).verdict is Verdict.PROVED
    assert network_ports(result, node_of, ports).verdict is Verdict.PROVED
    before, after = (
        Counter(t for _, _, r in s.located_rounds() for t in r) for s in (schedule, result)
    )
    assert before == after
    if network_ports(schedule, node_of, ports).verdict is Verdict.PROVED:
        assert result.rounds == schedule.rounds


def test_an_exchange_stays_together_and_a_reader_comes_first() -> None:
    exchange = (Transfer(0, 1, 0, "reduce"), Transfer(1, 0, 0, "reduce"))
    # Rank 2 overwrites what rank 3 still reads of it, in the round's order and against it.
    chain = (Transfer(4, 2, 1, "copy"), Transfer(2, 3, 1, "copy"))
    schedule = Schedule(ranks=5, chunks=2, phases=(Phase("all", (), ((*exchange, *chain),)),))
    parts = fitted(schedule, [0, 1, 2, 3, 0], 1).phases[0].rounds
    at = {t: number for number, part in enumerate(parts) for t in part}
    assert at[exchange[0]] == at[exchange[1]]
    assert at[chain[1]] <= at[chain[0]]
    assert len(parts) == 2


def test_claims_about_rounds_are_dropped() -> None:
    schedule = synth.generate(6)
    assert schedule.meta["optimal"] is True
    result = fitted(schedule, [0, 0, 1, 1, 2, 2], 1)
    assert "optimal" not in result.meta
    assert result.meta["method"] == schedule.meta["method"]


def test_nothing_to_split() -> None:
    schedule = synth.ring(4)
    assert fitted(schedule, [0, 0, 1, 1], 1).phases == schedule.phases
