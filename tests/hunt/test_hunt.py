"""``verify`` against oracles of its own: no program is proved that hangs or sums wrongly.

Each part looks at the same 500 programs every time. The first of each kind is always run, all ten
by ``make test-hunt``; ``make hunt`` looks at many more.
"""

from pathlib import Path

import pytest

from bench.corpus.executor import Run
from bench.corpus.parse import parse
from latecomer.verify.asynchronous.msccl import verify_xml
from latecomer.verify.asynchronous.mscclpp import verify_plan
from latecomer.verify.core.verdict import PROVED, Verdict
from latecomer.verify.errors import FormatError
from tests.hunt import model_oracle, plan_oracle, xml_oracle
from tests.hunt.all_kinds import KINDS
from tests.hunt.interleavings import JUNK, Undecided, ends, order_of
from tests.hunt.kinds import LENIENT, overall
from tests.hunt.plan_programs import positions_of
from tests.hunt.search import judge, search, shrink

PARTS = 10
EACH = 500
MOST_STATES = 500
KEPT = Path(__file__).parent / "kept"


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.hunt) for part in range(1, PARTS))]
)
@pytest.mark.parametrize("name", sorted(KINDS))
def test_no_program_contradicts_its_verdict(name, part):
    tally = search(KINDS[name], range(part * EACH, (part + 1) * EACH))
    contradictions = [finding.contradiction for finding in tally.findings]
    serious = [text for text in contradictions if not text.startswith(LENIENT)]
    assert not serious, tally.findings
    assert tally.share(Verdict.PROVED) > 0.15
    assert tally.share(Verdict.REFUTED) > 0.15


@pytest.mark.parametrize("path", sorted(KEPT.iterdir()), ids=lambda path: path.name)
def test_what_was_found_once_is_not_said_again(path):
    read = {".xml": verify_xml, ".json": verify_plan}[path.suffix]
    try:
        verdict = overall(read(path.read_bytes()).results).value
    except FormatError:
        verdict = "refused"
    assert not path.name.startswith(f"not-{verdict}")


@pytest.mark.parametrize("path", sorted(KEPT.iterdir()), ids=lambda path: path.name)
def test_the_oracles_say_why(path):
    look = {".xml": xml_oracle.look, ".json": plan_oracle.look_at}[path.suffix]
    outcome = look(path.read_bytes())
    if path.name.startswith("not-proved"):
        assert outcome.broken
    else:
        assert outcome.right


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_seed_makes_one_program(name):
    kind = KINDS[name]
    texts = [kind.text(kind.make(seed)) for seed in range(50)]
    assert texts == [kind.text(kind.make(seed)) for seed in range(50)]
    assert len(set(texts)) == 50


def test_what_is_left_out_of_messages_has_the_same_ends():
    compared = 0
    for seed in range(400):
        draft = KINDS["model"].make(seed)
        if sum(map(len, draft["blocks"])) > 6:
            continue
        try:
            program = model_oracle.Unrolled(draft, 1)
        except model_oracle.Fault:
            continue
        if len(order_of(program.actions)) < len(program.actions):
            continue  # it hangs
        start = [JUNK] * program.cells
        start[: program.shared] = range(1, program.shared + 1)
        try:
            everything = ends(program.actions, start, program.shared, 2_000, reduce=False)
        except Undecided:
            continue
        assert ends(program.actions, start, program.shared) == everything
        compared += 1
    assert compared > 40


def test_what_is_left_out_of_threads_has_the_same_ends_and_hangs():
    compared = 0
    hanging = 0
    for seed in range(500):
        plan = KINDS["plan"].make(seed)
        if len(positions_of(plan)) > 7:
            continue
        try:
            program = plan_oracle.Plan(plan, seed=1)
        except plan_oracle.Fault:
            continue
        try:
            hangs, memories, _ = program.machine().explore(MOST_STATES, reduce=False)
        except Undecided:
            continue

        reduced_hangs, reduced_memories, _ = program.machine().explore(MOST_STATES)
        assert reduced_hangs == hangs
        assert reduced_memories == memories
        compared += 1
        hanging += hangs
    assert compared > 10
    assert hanging > 1


def test_another_executor_agrees_on_files(tmp_path):
    path = tmp_path / "draft.xml"
    agreed = {"right": 0, "hang": 0}
    for seed in range(150):
        text = KINDS["xml"].make(seed).text()
        outcome = xml_oracle.look(text)
        if outcome.fault or outcome.wrong or outcome.races or not outcome.decided:
            continue

        path.write_bytes(text)
        file = parse(path)
        if file.refused or file.collective in {"broadcast", "reduce"} or waits_for_nothing(file):
            continue  # what that executor does not know

        outcomes = set()
        for in_place in file.modes:
            for per_message in xml_oracle.per_message(xml_oracle.read(text)):
                run = Run(file, in_place=in_place, per_message=per_message, seed=seed)
                outcomes.add(run.outcome().kind)
        assert ("hang" in outcomes) == bool(outcome.hangs)
        assert outcomes <= {"right", "hang"} or outcome.hangs
        agreed["hang" if outcome.hangs else "right"] += 1
    assert min(agreed.values()) > 10


def waits_for_nothing(file):
    """Whether some wait names a step before the first."""
    for block in file.blocks:
        for transmission in block.program:
            if any(step < 0 for _, step in transmission.waits):
                return True
    return False


class Trusting:
    """A kind whose verifier proves everything."""

    def __init__(self, kind):
        self.kind = kind

    def __getattr__(self, name):
        return getattr(self.kind, name)

    def verdict(self, draft):
        return dict.fromkeys(("deadlock_free", "race_free", "right_values"), PROVED)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_verifier_that_proves_everything_is_found_out_and_shrunk(name):
    kind = Trusting(KINDS[name])
    tally = search(kind, range(100), most_findings=1)
    (finding,) = tally.findings
    draft = kind.make(finding.seed)
    small = shrink(kind, draft, finding.contradiction)
    assert len(kind.text(small)) < len(kind.text(draft))
    assert judge(kind, small)[1] == finding.contradiction
