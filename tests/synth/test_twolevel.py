"""Two levels: proved, within the network ports, never worse than what it is compared with."""

import json
import math
from collections import Counter
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer import synth
from latecomer.synth.cost import Link
from latecomer.synth.solvers.choice import SOLVERS
from latecomer.synth.straggler import generate
from latecomer.synth.twolevel.bound import bound_any_chunks_s, bound_s, bytes_s
from latecomer.synth.twolevel.cost import completion_s, network_rounds, overlapped_s, waiting_s
from latecomer.synth.twolevel.machine import Machine
from latecomer.synth.twolevel.network import fitted, network_ports
from latecomer.synth.twolevel.ring import hierarchical_ring
from latecomer.synth.twolevel.search import search, two_level
from latecomer.synth.twolevel.staged import staged
from latecomer.synth.twolevel.waiting import mates_of, owner
from latecomer.verify import Phase, Schedule, Transfer, Verdict, check, read
from latecomer.verify.errors import ArgumentError

TWO_BY_TWO = "generate --nodes 2 --per-node 2 --bytes 1GiB"
INNER = Link(3e-6, 450e9)
OUTER = Link(10e-6, 50e9)
SHAPES = [(nodes, per_node) for nodes in (1, 2, 3, 4) for per_node in range(1, 9)]
SHAPES.remove((1, 1))
LINKS = st.builds(Link, st.floats(0, 1e-4), st.floats(1e6, 1e12))


def machine_of(nodes: int, per_node: int, ports: int | None = None) -> Machine:
    """Nodes with as many network ports as ranks, if nothing else is said."""
    if ports is None:
        ports = per_node
    return Machine(nodes, per_node, ports, INNER, OUTER)


@st.composite
def instances(draw, least_per_node: int = 1):
    """A machine with any links and any late rank."""
    nodes = draw(st.integers(1, 4))
    if nodes == 1:
        least_per_node = max(least_per_node, 2)  # one rank alone is refused
    per_node = draw(st.integers(least_per_node, 8))
    ports = draw(st.integers(1, per_node))
    inner = draw(LINKS)
    outer = draw(LINKS)
    drawn_machine = Machine(nodes, per_node, ports, inner, outer)
    late = draw(st.integers(0, drawn_machine.ranks - 1))
    return drawn_machine, late


@settings(max_examples=100, deadline=None)
@given(instances(least_per_node=2), st.integers(1, 40), st.integers(1, 8), st.integers(1, 2**33))
def test_any_chunks_and_any_burst(instance, chunks: int, burst: int, size: int) -> None:
    machine, late = instance
    ports = machine.network_ports
    schedule = two_level(machine, late, chunks, min(burst, ports))

    report = check(schedule)
    assert report.verdict is Verdict.PROVED, report.counterexample
    assert (schedule.late, schedule.ports) == ((late,), "duplex")
    assert all(late in phase.absent for phase in schedule.phases[:-1])
    assert schedule.phases[-1].absent == ()
    assert network_ports(schedule, machine.node_of, ports).verdict is Verdict.PROVED

    rounding = 1 + 1e-9
    seconds = completion_s(schedule, machine, size)
    overlapped = overlapped_s(schedule, machine, size)
    bound = bound_s(machine, size, chunks)
    assert overlapped <= seconds * rounding
    assert bytes_s(machine, size) <= overlapped * rounding
    assert bound <= seconds * rounding
    assert bound_any_chunks_s(machine, size) <= bound * rounding


@pytest.mark.parametrize(("nodes", "per_node"), SHAPES)
def test_hierarchical_ring(nodes: int, per_node: int) -> None:
    machine = machine_of(nodes, per_node)
    schedule = hierarchical_ring(machine)
    assert check(schedule).verdict is Verdict.PROVED
    assert network_ports(schedule, machine.node_of, per_node).verdict is Verdict.PROVED

    size = 2**30
    inside = (per_node - 1) * (INNER.alpha_s + size / per_node / INNER.bandwidth)
    between = (nodes - 1) * (OUTER.alpha_s + size / machine.ranks / OUTER.bandwidth)
    assert completion_s(schedule, machine, size) == pytest.approx(2 * (inside + between))
    assert network_rounds(schedule, machine) == 2 * (nodes - 1)
    assert waiting_s(schedule, machine, size) == 0


@pytest.mark.parametrize(
    ("nodes", "per_node", "ports", "late"),
    [(2, 4, 4, 0), (2, 8, 1, 15), (2, 8, 8, 3), (3, 2, 2, 2), (4, 4, 2, 9), (3, 1, 1, 1)],
)
def test_search_has_all_candidates_and_takes_the_best(nodes, per_node, ports, late) -> None:
    machine = machine_of(nodes, per_node, ports)
    record = search(machine, 2**30, late=late, time_limit_s=20)
    assert record.winner.seconds == min(c.seconds for c in record.candidates)

    names = {c.name.partition(",")[0] for c in record.candidates}
    expected_names = {"flat", "hierarchical ring"}
    if per_node > 1:
        expected_names.add("two-level")
    assert names == expected_names

    rounding = 1 - 1e-9
    for candidate in record.candidates:
        assert candidate.report.verdict is Verdict.PROVED
        assert network_ports(candidate.schedule, machine.node_of, ports).verdict is Verdict.PROVED
        assert candidate.seconds >= record.bytes_s
        if candidate.bound_s is not None:
            assert candidate.seconds >= candidate.bound_s * rounding
            assert candidate.bound_s >= record.bound * rounding

    if "two-level" in names:
        assert record.winner.name.startswith("two-level")


def test_two_nodes_of_eight_with_four_ports() -> None:
    record = search(machine_of(2, 8, 4), 2**30, late=3)
    ring = next(c for c in record.candidates if c.name == "hierarchical ring")
    assert record.winner.seconds < 1.05 * record.bound
    assert record.winner.seconds < 0.83 * ring.seconds


def test_network_rounds_come_near_their_least() -> None:
    for nodes, ports in [(2, 8), (3, 8), (4, 8), (4, 2), (4, 1)]:
        machine = machine_of(nodes, 8, ports)
        schedule = two_level(machine, 0, 64, ports)
        least = 64 // ports + math.ceil(math.log(nodes, ports + 1)) - 1
        at_most = least if nodes == 2 else least + 3
        assert least <= network_rounds(schedule, machine) <= at_most


def test_owners_take_turns_among_the_mates() -> None:
    machine = machine_of(2, 4)
    late = 5
    assert mates_of(machine, late) == [4, 6, 7]
    assert [owner(machine, late, chunk) for chunk in range(5)] == [4, 6, 7, 4, 6]

    completion = two_level(machine, late, 12, 4).phases[-1]
    exchanges = [t for transfers in completion.rounds for t in transfers if t.op == "reduce"]
    assert len(exchanges) == 24
    assert {(t.src, t.dst) for t in exchanges if t.src != late} == {(4, 5), (6, 5), (7, 5)}
    assert all(t.src == owner(machine, late, t.chunk) for t in exchanges if t.dst == late)


def test_cost_by_hand() -> None:
    machine = Machine(2, 2, 1, Link(1, 8), Link(10, 2))  # 4 ranks, chunks of 8 bytes: 1 s, 4 s
    rounds = (
        (Transfer(0, 1, 0, "copy"), Transfer(3, 2, 1, "copy")),  # 1 + 1
        (Transfer(0, 2, 0, "copy"), Transfer(3, 2, 1, "copy")),  # 2 receives: 10 + 4 and 1 + 1
        (),
        (Transfer(0, 1, 0, "copy"), Transfer(0, 1, 1, "copy")),  # one message: 1 + 2
    )
    wait = Phase("wait", (3,), ((Transfer(1, 0, 0, "copy"),),))
    schedule = Schedule(ranks=4, chunks=2, phases=(wait, Phase("rest", (), rounds)))
    assert completion_s(schedule, machine, 16) == 2 + 16 + 3
    assert waiting_s(schedule, machine, 16) == 2
    assert network_rounds(schedule, machine) == 1
    # Rank 0 is done with its message of 14 s at 16 s, and rank 2 with the second one at 18 s.
    assert overlapped_s(schedule, machine, 16) == 16 + 3


def test_without_barriers_a_node_does_not_wait_for_the_network() -> None:
    machine = Machine(2, 2, 1, Link(0, 1), Link(0, 0.1))
    out = (Transfer(0, 2, 0, "copy"),)
    inside = (Transfer(1, 0, 0, "copy"),)
    back = (Transfer(3, 1, 0, "copy"),)

    schedule = Schedule(ranks=4, chunks=1, phases=(Phase("all", (), (out, inside, back)),))
    assert completion_s(schedule, machine, 1) == 10 + 1 + 10
    assert overlapped_s(schedule, machine, 1) == 11 + 10  # rank 1 is busy to 11, then the network

    network_only = Schedule(ranks=4, chunks=1, phases=(Phase("all", (), (out, back)),))
    assert completion_s(network_only, machine, 1) == 20
    assert overlapped_s(network_only, machine, 1) == 10  # one port each way, different ways


@pytest.mark.parametrize("bad", [Link(-1, 1), Link(math.nan, 1), Link(0, 0), Link(0, math.inf)])
def test_bad_links(bad: Link) -> None:
    for inner, outer in [(bad, OUTER), (INNER, bad)]:
        with pytest.raises(ArgumentError):
            Machine(2, 2, 1, inner, outer)


def test_written_and_explained(synth, tmp_path) -> None:
    machine = "--nodes 2 --per-node 4 --network-ports 2"
    command = f"generate {machine} --bytes 1GiB --late 1 -o a.json"
    code, text, err = synth(*command.split())
    assert (code, err) == (0, "")

    schedule = read(tmp_path / "a.json")
    assert check(schedule).verdict is Verdict.PROVED
    assert (schedule.ranks, schedule.late) == (8, (1,))

    for fact in [
        "a.json: proved; two-level, burst 2, AllReduce of 8 ranks in ",
        " chunks, rank 1 late",
        "2 nodes of 4 ranks, 2 network ports each",
        "inside   alpha = 3 us, 1/beta = 450 GB/s",
        "between  alpha = 10 us, 1/beta = 50 GB/s",
        "  * two-level, burst 2",
        "hierarchical ring",
        "flat",
        "lower bound",
        "Whether anything is faster is unknown",
    ]:
        assert fact in text
    assert "optimal" not in text


def test_json_tells_the_same(synth) -> None:
    links = "--outer-alpha 20us --outer-bandwidth 1GB/s"
    _, out, _ = synth(*f"{TWO_BY_TWO} {links} --json".split())
    facts = json.loads(out)
    assert facts["machine"]["outer"] == {"alpha_s": 2e-5, "bandwidth": 1e9}
    assert facts["machine"]["network_ports"] == 2
    assert facts["basis"] == "unknown"
    winner = facts["candidates"][0]
    assert facts["winner"] == winner["name"]
    assert facts["bytes_s"] <= facts["bound_s"] <= winner["seconds"]


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_flat_schedule_is_searched_by_the_solver_asked_for(synth, monkeypatch, solver) -> None:
    asked = Mock(wraps=generate.search)
    monkeypatch.setattr("latecomer.synth.twolevel.search.search_flat", asked)
    code, _, _ = synth(*f"{TWO_BY_TWO} --solver {solver}".split())
    assert (code, asked.call_count) == (0, 1)
    assert asked.call_args.kwargs["solver"] == solver


def one_round(*copies: tuple[int, int, int]) -> Schedule:
    """Copies (src, dst, chunk) in the one round of the second phase."""
    transfers = tuple(Transfer(src, dst, chunk, "copy") for src, dst, chunk in copies)
    phases = (Phase("wait", (), ((),)), Phase("rest", (), ((), transfers)))
    return Schedule(ranks=6, chunks=4, phases=phases)


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
    one_message = one_round((0, 3, 0), (0, 3, 1))
    assert network_ports(one_message, NODE_OF, 1).verdict is Verdict.PROVED


@settings(max_examples=30, deadline=None)
@given(
    st.integers(2, 9),
    st.integers(1, 2),
    st.sampled_from(["generate", "ring", "rhd"]),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_fitted_schedules_are_still_right(n, m, name, ports, random) -> None:
    options = {"m": m} if name == "generate" else {}
    schedule = getattr(synth, name)(n, **options)
    node_of = [random.randrange(3) for _ in range(n)]

    result = fitted(schedule, node_of, ports)
    assert check(result).verdict is Verdict.PROVED
    assert network_ports(result, node_of, ports).verdict is Verdict.PROVED
    assert transfer_counts(result) == transfer_counts(schedule)
    if network_ports(schedule, node_of, ports).verdict is Verdict.PROVED:
        assert result.rounds == schedule.rounds


def transfer_counts(schedule: Schedule) -> Counter[Transfer]:
    """How often each transfer is in the schedule, in whatever round."""
    counts: Counter[Transfer] = Counter()
    for _, _, transfers in schedule.located_rounds():
        counts.update(transfers)
    return counts


def test_an_exchange_stays_together_and_a_reader_comes_first() -> None:
    exchange = (Transfer(0, 1, 0, "reduce"), Transfer(1, 0, 0, "reduce"))
    # Rank 2 overwrites what rank 3 still reads of it, in the round's order and against it.
    chain = (Transfer(4, 2, 1, "copy"), Transfer(2, 3, 1, "copy"))
    schedule = Schedule(ranks=5, chunks=2, phases=(Phase("all", (), ((*exchange, *chain),)),))

    rounds = fitted(schedule, [0, 1, 2, 3, 0], 1).phases[0].rounds
    round_of = {t: number for number, transfers in enumerate(rounds) for t in transfers}
    assert round_of[exchange[0]] == round_of[exchange[1]]
    assert round_of[chain[1]] <= round_of[chain[0]]
    assert len(rounds) == 2


def test_claims_about_rounds_are_dropped() -> None:
    schedule = synth.generate(6)
    assert schedule.meta["optimal"] is True
    result = fitted(schedule, [0, 0, 1, 1, 2, 2], 1)
    assert "optimal" not in result.meta
    assert result.meta["method"] == schedule.meta["method"]


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 4), st.integers(2, 5), st.integers(1, 3), st.data())
def test_in_stages(nodes: int, per_node: int, chunks: int, data) -> None:
    """Proved for any late rank; all network messages of a node at once; every rank waits for less.

    Without a network port for each rank its rounds are split, and it is still right.
    """
    machine = machine_of(nodes, per_node)
    late = data.draw(st.integers(0, machine.ranks - 1))
    between = generate.generate(nodes, late=late // per_node, chunks=chunks)
    schedule = staged(machine, late, between)
    assert check(schedule).verdict is Verdict.PROVED
    assert network_ports(schedule, machine.node_of, per_node).verdict is Verdict.PROVED
    assert network_rounds(schedule, machine) == between.completion_rounds
    for _, _, transfers in schedule.located_rounds():
        kinds = {machine.node_of[t.src] == machine.node_of[t.dst] for t in transfers}
        assert len(kinds) == 1

    one_port = fitted(schedule, machine.node_of, 1)
    assert check(one_port).verdict is Verdict.PROVED
    assert network_ports(one_port, machine.node_of, 1).verdict is Verdict.PROVED


def test_stages_in_the_command(synth, tmp_path) -> None:
    command = "generate --nodes 2 --per-node 8 --bytes 16MiB --late 3 --stages -o a.json"
    code, text, err = synth(*command.split())
    assert (code, err) == (0, "")
    assert "a.json: proved; stages, AllReduce of 16 ranks in 8 chunks, rank 3 late" in text
    assert "flat" not in text
    schedule = read(tmp_path / "a.json")
    assert schedule.meta["nodes"] == 2
    with pytest.raises(ArgumentError, match="--stages"):
        search(machine_of(1, 4), 2**20, stages=True)
