"""What pages are told: transfers, the places of faults, slack, who waits; and how it is cut."""

import json
import random
import re
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.synth import standard
from latecomer.synth.export.msccl_xml import encode
from latecomer.verify.asynchronous.msccl import verify_xml
from latecomer.verify.asynchronous.msccl_xml import TYPES
from latecomer.verify.asynchronous.mscclpp_plan import NAMES
from latecomer.verify.core.verdict import Verdict
from latecomer.verify.errors import ArgumentError, FormatError
from latecomer.verify.pipeline.costs import Costs
from latecomer.verify.pipeline.graph import build
from latecomer.verify.pipeline.lower import lowered
from latecomer.verify.viewer.command import page_of
from latecomer.verify.viewer.pipeline import slacks
from latecomer.verify.viewer.step_words import MSCCL_OPERATIONS, PLAN_OPERATIONS
from tests.verify import builders
from tests.verify.asynchronous import planted
from tests.verify.asynchronous.test_mscclpp import packets
from tests.verify.asynchronous.test_teccl import EXCHANGE, RING, solution
from tests.verify.mutants import mutant
from tests.verify.pipeline import documents as pipelines
from tests.verify.viewer.pages import model_of_document, model_of_text

RIGHT = builders.all_right()


def transfers(doc, low=0, high=2**30):
    """Per round its transfers that can be drawn, as the document has them."""
    ranks = range(doc["ranks"])
    chunks = range(max(0, low), min(doc["chunks"], high))
    rounds = []
    for phase in doc["phases"]:
        for moves in phase["rounds"]:
            drawn = []
            for src, dst, chunk, op in moves:
                if src in ranks and dst in ranks and chunk in chunks:
                    drawn.append([src, dst, chunk, op])
            rounds.append(drawn)
    return rounds


def of_model(model):
    """Per round the transfers of a page, which has them as one flat list of numbers."""
    rounds = []
    for flat in model["rounds"]:
        moves = []
        for i in range(0, len(flat), 4):
            src, dst, chunk, reduces = flat[i : i + 4]
            moves.append([src, dst, chunk, "reduce" if reduces else "copy"])
        rounds.append(moves)
    return rounds


@pytest.mark.parametrize("name", RIGHT)
def test_every_transfer_of_a_right_schedule_is_shown(name):
    model = model_of_document(RIGHT[name])
    assert of_model(model) == transfers(RIGHT[name])
    assert (model["verdict"], model["faults"], model["cut"]) == ("proved", [], "")
    bound = model["bound"]
    assert [term["decides"] for term in bound["terms"]].count(True) == (bound["bound"] > 0)
    assert {"proved"} == {p["verdict"] for p in model["properties"]}
    assert all(p["meaning"] for p in model["properties"])


@given(st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_the_faults_of_wrong_schedules_are_where_the_counterexamples_say(rng):
    doc = mutant(rng)
    model = model_of_document(doc)
    assert of_model(model) == transfers(doc)
    assert bool(model["faults"]) == (model["verdict"] == "refuted")
    rounds = transfers(doc)
    for fault in model["faults"]:
        for number, src, dst, chunk in (*fault["faulty"], *fault["transfers"]):
            of_ranks = 0 <= src < doc["ranks"] and 0 <= dst < doc["ranks"]
            if of_ranks and 0 <= chunk < doc["chunks"]:
                assert [src, dst, chunk] in [move[:3] for move in rounds[number]]

        location = re.search(r"phase (.*), round (\d+), rank (\d+), chunk (\d+)$", fault["place"])
        if location and fault["property"] == "exactly_once":
            name, *numbers = location.groups()
            names = [phase["name"] for phase in doc["phases"]]
            phases_before = doc["phases"][: names.index(name)]
            first = sum(len(phase["rounds"]) for phase in phases_before)
            number, _, dst, chunk = fault["faulty"][0]
            assert [number - first, dst, chunk] == [int(text) for text in numbers]


def test_the_faulty_transfer_of_a_double_count_is_the_one_that_doubles():
    rounds = [builders.moves("0+1:0 1+0:0"), builders.moves("0+1:0")]
    doc = builders.document(2, 1, [("all", [], rounds)])
    fault = next(f for f in model_of_document(doc)["faults"] if f["property"] == "exactly_once")
    assert fault["faulty"] == [[1, 0, 1, 0]]
    assert [1, 0, 1, 0] in fault["transfers"]


def test_indices_beyond_all_bounds_are_not_drawn():
    moves = [[0, 2**80, 0, "copy"], [0, 1, -(2**80), "copy"], [1, 0, 0, "copy"]]
    model = model_of_document(builders.document(2, 1, [("all", [], [moves])]))
    assert model["rounds"] == [[1, 0, 0, 0]]
    assert (model["meaningful"], model["bound"]) == (False, None)
    assert page_of(model)


def test_texts_of_a_file_are_no_markup():
    doc = builders.optimal_two()
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    doc["phases"][0]["name"] = evil
    page = page_of({**model_of_document(doc), "title": evil})
    assert page.count("</script>") == 2
    assert "<img" not in page
    page = page_of(model_of_document(builders.optimal_two()))
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|\bsrc=|@import|url\(", page)


def test_a_large_file_is_cut_by_chunks_and_says_how_to_see_others():
    doc = builders.ring(180)  # 64,440 transfers
    model = model_of_document(doc)
    low, high = model["shown"]
    assert (low, model["ranks"]) == (0, 180)
    assert 0 < high < 180
    assert f"Shown are chunks 0 to {high - 1} of 180" in model["cut"]
    assert f"--html-part {high}-" in model["cut"]
    assert model["load"] == [180] * 358  # of all chunks
    part = model_of_document(doc, "100-101")
    assert of_model(part) == transfers(doc, 100, 102)
    with pytest.raises(ArgumentError, match=r"must be chunks of 0 \.\. 179"):
        model_of_document(doc, "170-180")
    with pytest.raises(ArgumentError, match="a page shows at most"):
        model_of_document(doc, "0-179")
    doc["phases"][1]["rounds"][-1] = [m for m in doc["phases"][1]["rounds"][-1] if m[2] != 177]
    assert model_of_document(doc)["shown"][0] == 177  # that of the counterexample


def test_what_no_page_can_show_is_refused():
    large = builders.document(1500, 1, [("p", [], [[]])])
    with pytest.raises(ArgumentError, match=r"has 1500 ranks, at most 1,024. Draw a smaller"):
        model_of_document(large)
    for text in ("3-1", "-4", "1-2-3", "x"):
        with pytest.raises(ArgumentError, match="must be FROM-TO"):
            model_of_document(builders.ring(3), text)


@pytest.mark.parametrize("seed", range(6))
def test_slack_is_what_a_pass_may_take_longer_and_no_more(seed):
    rng = random.Random(seed)
    links = [{"between": [1, 2], "latency": rng.randrange(30), "occupancy": rng.randrange(9)}]
    doc = pipelines.document(pipelines.zero_bubble(4, 5), 5, links=links)
    schedule = pipelines.schedule_of(doc)
    costs = Costs.of(schedule.instance)
    graph = build(lowered(schedule, costs), costs)
    finish = graph.finishes()
    for number, slack in enumerate(slacks(graph, finish)):
        node = graph.nodes[number]
        for more, same in ((slack, True), (slack + 1, False)):
            node.length += more
            assert (max(graph.finishes()) == max(finish)) == same
            node.length -= more
    model = model_of_document(doc)
    assert {p[6] == 1 for p in model["passes"] if p[7]} == {False}
    assert len(model["passes"]) == sum(map(len, doc["programs"]))
    assert max(p[5] for p in model["passes"]) == model["makespan"] == model["bound"]["value"]


def test_a_page_says_why_a_pipeline_has_two_makespans():
    links = [{"between": [1, 2], "latency": 9}]
    doc = pipelines.document(pipelines.zero_bubble(4, 6), 6, links=links)
    model = model_of_document(doc)
    facts = dict(model["facts"])
    text = facts["two makespans"]
    makespan, in_order = re.match(r"(\d+) assumes .*, and (\d+) assumes rendezvous", text).groups()
    assert int(makespan) == model["makespan"] < int(in_order)
    assert text.endswith(f"about {makespan}.")
    without_delay = model_of_document(pipelines.document(pipelines.zero_bubble(4, 6), 6))
    assert without_delay["facts"] == []


def test_a_pipeline_that_can_not_run_is_shown_as_programs():
    doc = pipelines.document(pipelines.zero_bubble(3, 4), 4)
    doc["programs"][2].insert(0, doc["programs"][2].pop())
    model = model_of_document(doc)
    assert model["programs"] == doc["programs"]
    assert model["faults"][0]["faulty"] == [[2, 0]]
    assert "passes" not in model


def test_a_wait_cycle_of_a_pipeline_is_found_in_the_programs():
    doc = pipelines.document([["0F0", "0B0", "0F1", "0B1"], ["1F1", "1B1", "1F0", "1B0"]], 2)
    fault = next(f for f in model_of_document(doc)["faults"] if f["property"] == "deadlock_free")
    assert fault["faulty"]
    for rank, position in fault["faulty"]:
        assert any(doc["programs"][rank][position] in line for line in fault["lines"])


def test_ranks_of_a_pipeline_can_be_chosen():
    doc = pipelines.document(pipelines.zero_bubble(4, 5), 5)
    model = model_of_document(doc, "1-2")
    assert {p[0] for p in model["passes"]} == {1, 2}
    assert {(m[0], m[1]) for m in model["messages"]} == {(1, 2), (2, 1)}
    assert "Shown are ranks 1 to 2 of 4" in model["cut"]


def blocks_agree(model):
    """Steps of a block follow each other, and each wait that happens goes forward."""
    steps = model["steps"]
    ends = {}
    for row, begin, end, _state, _kind, _text in steps:
        assert begin >= ends.get(row, 0)
        assert end > begin
        ends[row] = end
    for earlier, later in model["waits"]:
        if steps[later][3] == 0:
            assert steps[earlier][3] == 0
            assert steps[later][2] > steps[earlier][1]
    return steps


@pytest.mark.parametrize("name", planted.bases())
def test_right_programs_of_blocks_run_to_their_ends(name):
    model = model_of_text("a.xml", planted.bases()[name])
    assert {step[3] for step in blocks_agree(model)} == {0}
    assert model["faults"] == []


NOP = (
    '<step s="9" type="nop" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="0" depid="-1" '
    'deps="-1" hasdep="0"/></tb>'
)


def test_steps_of_the_file_and_steps_that_run_are_told_apart():
    xml = encode(standard.direct(4))
    steps = xml.count(b"<step")
    blocks = xml.count(b"</tb>")
    model = model_of_text("a.xml", xml)
    assert f"{steps} steps in" in model["headline"]
    assert "run as" not in model["headline"]
    assert "steps" not in dict(model["facts"])

    with_nops = xml.replace(b"</tb>", NOP.encode())
    model = model_of_text("a.xml", with_nops)
    assert model["verdict"] == "proved"
    assert f"{steps + blocks} steps in {blocks} thread blocks" in model["headline"]
    assert model["headline"].endswith(f"run as {steps} steps")
    said = dict(model["facts"])["steps"]
    assert said.startswith(f"The file has {steps + blocks} steps, and {steps} run: the executor ")
    assert len(model["steps"]) == steps

    model = model_of_text("a.xml", with_nops, "1-2")
    shown = len(model["steps"])
    assert dict(model["facts"])["steps"].endswith(
        f"{shown} of the {steps} that run are shown, those of these ranks."
    )


def test_every_operation_that_a_step_can_be_has_a_meaning():
    assert MSCCL_OPERATIONS.keys() == set(TYPES) - {"nop"}
    assert PLAN_OPERATIONS.keys() == NAMES - {"nop", "flush", "pipeline"}


@pytest.mark.parametrize("name", [*planted.bases(), "plan"])
def test_every_word_of_a_step_is_explained(name):
    if name == "plan":
        model = model_of_text("plan.json", json.dumps(packets(3)).encode())
    else:
        model = model_of_text("a.xml", planted.bases()[name])
    texts = [step[5].partition(": ")[2] for step in model["steps"]]
    words = model["words"]
    assert words["operations"].keys() == {re.match("[a-z_]+", text)[0] for text in texts}

    letters = set()
    for text in texts:
        letters.update(re.findall(r"\b([a-z])\[", text))
    explained = {term[0] for term, _ in words["notation"] if term[1:] == "[3]"}
    assert explained == letters
    assert all(meaning for _, meaning in words["notation"])


@pytest.mark.parametrize("name", planted.bases())
def test_blocks_come_rank_by_rank(name):
    ranks = [row["rank"] for row in model_of_text("a.xml", planted.bases()[name])["rows"]]
    assert ranks == sorted(ranks)


def test_planted_faults_are_found_among_the_steps():
    base = encode(standard.direct(4))
    properties = set()
    for fault in islice(planted.faults("direct", base), 0, None, 7):
        try:
            verdict = verify_xml(fault.data).verdict
        except FormatError:
            continue
        model = model_of_text("a.xml", fault.data)
        steps = blocks_agree(model)
        assert bool(model["faults"]) == (verdict is Verdict.REFUTED)
        for shown in model["faults"]:
            properties.add(shown["property"])
            named_by_line = [indices for indices in shown["waits"] if indices]  # one step or two
            for indices in named_by_line:
                assert all(steps[index][5] for index in indices)
            if shown["property"] == "deadlock_free":
                assert shown["faulty"]
                assert {steps[indices[0]][3] for indices in named_by_line} == {1}
    assert len(properties) > 1


def test_plans_and_flows_have_models():
    plan = model_of_text("plan.json", json.dumps(packets(3)).encode())
    assert {step[3] for step in blocks_agree(plan)} == {0}
    model = model_of_text("solution.json", solution(*RING))
    assert [len(flat) // 4 for flat in model["rounds"]] == [3, 3]
    assert model["wanted"] == [-1, -1, -1]
    exchange = model_of_text("solution.json", solution(*EXCHANGE))
    assert (exchange["names"], exchange["moves"]) == (["4", "7"], True)
    early = model_of_text("solution.json", solution(*RING[1:]))
    assert early["faults"][0]["faulty"] == [[1, 1, 2, 0]]


def test_the_command_writes_a_page_beside_its_verdict(verify, tmp_path):
    (tmp_path / "s.json").write_text(json.dumps(builders.broken(builders.straggler(4))))
    plain = verify("s.json")
    assert verify("s.json", "--html", "s.html") == plain
    assert plain[0] == 1
    assert '"family":"collective"' in (tmp_path / "s.html").read_text()
    for options, problem in [
        (("s.json", "s.json", "--html", "x.html"), "needs exactly one schedule file"),
        (("s.json", "--html-part", "0-1"), "is for --html"),
        (("s.json", "--html", "x.html", "--html-part", "0-9"), "must be chunks of 0 .. 2"),
        (("s.json", "--html", "no/x.html"), "no/x.html"),
    ]:
        code, _, err = verify(*options)
        assert (code, problem in err) == (2, True), err
    assert not (tmp_path / "x.html").exists()
