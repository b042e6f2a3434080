"""TE-CCL's flows: nothing is sent before it is there, and everything arrives."""

import json
from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latecomer.verify.asynchronous.teccl import verify_flows
from latecomer.verify.core.verdict import Verdict
from latecomer.verify.errors import FormatError


def solution(*flows: str, epochs: int = 9) -> bytes:
    """A file of flows: ``0.5*1of4 4->7 0`` is half of chunk 1 of 4, from 4 to 7, in epoch 0."""
    lines = []
    for flow in flows:
        data, link, epoch = flow.split()
        chunk, owner = data.split("of")
        volume = ""
        if "*" in chunk:
            part, chunk = chunk.split("*")
            volume = f" with volume {part}"
        lines.append(f"Chunk {chunk} from {owner} traveled over {link}{volume} in epoch {epoch}")
    return json.dumps({"3-Epochs_Required": epochs, "7-Flows": lines}).encode()


RING = [
    "0of0 0->1 0",
    "0of0 1->2 1",
    "0of1 1->2 0",
    "0of1 2->0 1",
    "0of2 2->0 0",
    "0of2 0->1 1",
]
EXCHANGE = ["1.0*1of4 4->7 0", "0.5*0of7 7->4 0", "0.5*0of7 7->4 1"]


def wrong(*flows: str, epochs: int = 9) -> tuple[str, str]:
    report = verify_flows(solution(*flows, epochs=epochs))
    assert report.verdict is Verdict.REFUTED
    name, result = next((n, r) for n, r in report.results.items() if r.counterexample)
    return name, result.counterexample.found


@pytest.mark.parametrize(("flows", "kind"), [(RING, "allgather"), (EXCHANGE, "alltoall")])
def test_right_ones_are_proved(flows, kind):
    report = verify_flows(solution(*flows))
    assert (report.verdict, report.collective) == (Verdict.PROVED, kind)
    assert report.ranks == (3 if kind == "allgather" else 2)


def test_faults_are_named():
    early = [f"{flow[:-1]}0" if flow.startswith("0of0") else flow for flow in RING]
    problem = "epoch 0: chunk 0 of 0, 1 -> 2, of which 0 is there"
    assert wrong(*early) == ("nothing_too_early", problem)
    assert wrong(*RING[1:])[0] == "nothing_too_early"
    assert wrong(*RING[:1], *RING[2:]) == ("delivered", "0 of chunk 0 of 0")
    assert wrong(*EXCHANGE[:2]) == ("delivered", "0.5 of chunk 0 of 7")
    assert wrong(*RING, epochs=1) == ("claims", "flows in 2")


def test_who_only_receives_takes_part():
    """Rank 2 is sent both chunks, and its own is nowhere."""
    flows = ["0of0 0->1 0", "0of1 1->0 0", "0of0 0->2 0", "0of1 1->2 0"]
    assert wrong(*flows) == ("delivered", "0 of chunk 0 of 2")


def test_who_is_only_demanded_for_takes_part():
    document = json.loads(solution("0of0 0->1 0", "0of1 1->0 0"))
    document["8-Chunk paths"] = {"Demand at 2 for chunk 0 from 0 met by epoch 0": []}
    report = verify_flows(json.dumps(document).encode())
    assert (report.ranks, report.verdict) == (3, Verdict.REFUTED)


def test_chunks_that_nobody_sends_are_missing():
    """Of an all-to-all of three, chunk 1, and that is what everybody has for rank 1."""
    names = [4, 5, 6]
    flows = []
    for owner, target in permutations(names, 2):
        flows.append(f"1.0*{names.index(target)}of{owner} {owner}->{target} 0")
    assert verify_flows(solution(*flows)).verdict is Verdict.PROVED
    assert wrong(*(flow for flow in flows if "*1of" not in flow))[0] == "delivered"
    assert wrong("0of0 0->1 0", "0of1 1->0 0", "2of0 0->1 0", "2of1 1->0 0")[0] == "delivered"


@given(parts=st.lists(st.integers(1, 10**6), min_size=1, max_size=30), less=st.integers(0, 10**9))
def test_no_more_is_lost_than_rounding_explains(parts, less):
    """Parts of a chunk add up to it, less so many billionths."""
    total = sum(parts)
    exact = [Fraction(part, total) for part in parts]
    exact[0] = max(exact[0] - Fraction(less, 10**9), Fraction(0))
    lost = 1 - sum(exact)
    flows = [f"{float(part):.20f}*1of0 0->1 {n}" for n, part in enumerate(exact)]
    report = verify_flows(solution(*flows, "1.0*0of1 1->0 0", epochs=99))
    slack = Fraction(2, 10**12)
    if lost > min(len(flows) * Fraction(1, 10**6), Fraction(1, 10**5)) + slack:
        assert report.verdict is not Verdict.PROVED
    if lost <= Fraction(1, 10**6):
        assert report.verdict is Verdict.PROVED


@pytest.mark.parametrize(
    ("part", "expected"), [(0.00991, Verdict.REFUTED), (0.009999, Verdict.UNKNOWN)]
)
def test_many_small_losses_are_not_overlooked(part, expected):
    flows = [f"{part:f}*1of0 0->1 {n}" for n in range(100)]
    report = verify_flows(solution(*flows, "1.0*0of1 1->0 0", epochs=999))
    assert report.verdict is expected


def test_what_relays_add_is_lost_elsewhere():
    """Each of many relays sends on a little more than it got."""
    flows = ["1.0*0of1 1->0 0"]
    for relay in range(2, 92):
        flows += [f"0.0110*1of0 0->{relay} 0", f"0.0112*1of0 {relay}->1 1"]
    for owner, target in permutations(range(92), 2):
        if {owner, target} != {0, 1}:
            flows.append(f"1.0*{target}of{owner} {owner}->{target} 0")
    assert wrong(*flows, epochs=9)[0] == "nothing_too_early"


def test_the_command_takes_them(verify, tmp_path):
    (tmp_path / "right.json").write_bytes(solution(*RING))
    (tmp_path / "wrong.json").write_bytes(solution(*RING[1:]))
    code, out, _ = verify("right.json", "wrong.json")
    assert code == 1
    assert "right.json: PROVED" in out
    assert "nothing_too_early  REFUTED" in out
    assert json.loads(verify("right.json", "--json")[1])["format"] == "te-ccl"
    assert verify("right.json", "--z3")[0] == 2


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"[]", "Expected `object`"),
        (b"{}", "has no flows"),
        (b'{"7-Flows": ["a chunk"]}', "flow 0 is not understood"),
        (solution("0of0 0->1 0", "0.5*0of1 1->0 0"), "some flows have a volume"),
        (solution("0of0 0->1 0", "0of1 1->1 0"), "from a rank to itself"),
        (b'{"7-Flows": ["x"], "6-Flows": ["x"]}', "flows twice"),
        (solution("1e999999999*0of0 0->1 0"), "flow 0 is not understood"),
    ],
)
def test_what_is_no_solution_is_refused(data, problem):
    with pytest.raises(FormatError, match=problem):
        verify_flows(data)
