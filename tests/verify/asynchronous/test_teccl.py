"""TE-CCL's flows: nothing is sent before it is there, and everything arrives."""

import json

import pytest

from verify.asynchronous.teccl import verify_flows
from verify.core.verdict import Verdict
from verify.errors import FormatError


def solution(*flows: str, epochs: int = 9) -> bytes:
    lines = []
    for flow in flows:
        what, over, when = flow.split()
        chunk, owner = what.split("of")
        volume = ""
        if "*" in chunk:
            part, chunk = chunk.split("*")
            volume = f" with volume {part}"
        lines.append(f"Chunk {chunk} from {owner} traveled over {over}{volume} in epoch {when}")
    return json.dumps({"3-Epochs_Required": epochs, "7-Flows": lines}).encode()


RING = [f"0of{owner} {(owner + hop) % 3}->{(owner + hop + 1) % 3} {hop}"
        for owner in range(3) for hop in range(2)]  # fmt: skip
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
    found = "epoch 0: chunk 0 of 0, 1 -> 2, of which 0 is there"
    assert wrong(*early) == ("nothing_too_early", found)
    assert wrong(*RING[1:])[0] == "nothing_too_early"
    assert wrong(*RING[:1], *RING[2:]) == ("delivered", "0 of chunk 0 of 0")
    assert wrong(*EXCHANGE[:2]) == ("delivered", "0.5 of chunk 0 of 7")
    assert wrong(*RING, epochs=1) == ("claims", "flows in 2")


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
    ],
)
def test_what_is_no_solution_is_refused(data, problem):
    with pytest.raises(FormatError, match=problem):
        verify_flows(data)
