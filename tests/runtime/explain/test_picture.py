"""The picture and the page of waits: all ranks once, arrows to who is waited for."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.runtime.explain.dumps import Dump
from latecomer.runtime.explain.findings import findings, places
from latecomer.runtime.explain.job import job_of
from latecomer.runtime.explain.page import as_page
from latecomer.runtime.explain.picture import MOST_IN_A_COLUMN, as_picture
from latecomer.runtime.explain.records import record_of
from latecomer.runtime.explain.sources import Sources, read_sources
from latecomer.runtime.explain.standing import Place, places_of
from latecomer.runtime.explain.verdicts import verdicts
from latecomer.runtime.explain.waits import Waits
from tests.docs.sessions import ROOT
from tests.runtime.explain.jobs import Model, Step
from tests.runtime.explain.test_jobs import RANKS, SEEDS, job

SVG = "{http://www.w3.org/2000/svg}"


def stopped(seed, ranks, kind):
    """A job in which a rank sleeps, or has no dump, or two receive from each other first."""
    groups, programs, rank, place, _ = job(seed, ranks)
    if kind == "p2p":
        for one, peer in ((0, ranks - 1), (ranks - 1, 0)):
            receive = Step("world", "recv", 16, peer=peer)
            programs[one][:0] = [receive, replace(receive, kind="send")]
    else:
        programs[rank].insert(place, Step(kind="sleep"))
    dumps = Model(groups, programs).run().dumps()
    if kind == "no dump":
        del dumps[rank]
    records = {each: record_of(msgspec.convert(dump, Dump)) for each, dump in dumps.items()}
    return job_of(records, ranks)


@settings(max_examples=30, deadline=None)
@given(SEEDS, RANKS, st.sampled_from(["sleeps", "no dump", "p2p"]))
def test_every_rank_has_one_place_and_waits_lead_to_the_right(seed, ranks, kind):
    of = stopped(seed, ranks, kind)
    found = verdicts(of)
    standing = places_of(of, found)
    ranks = [rank for place in standing for rank in place.ranks]
    assert sorted(ranks) == sorted(of.world)
    blamed = {rank for verdict in found for rank in verdict.ranks}
    assert blamed == {rank for place in standing if place.is_blamed for rank in place.ranks}

    edges = Waits(of).edges
    of_rank = {rank: number for number, place in enumerate(standing) for rank in place.ranks}
    for rank, awaited in edges.items():
        place = standing[of_rank[rank]]
        assert set(place.waits_for) == {of_rank[other] for other in awaited}
        assert all(standing[other].column <= place.column for other in place.waits_for)


PLACES = st.integers(1, 60).flatmap(
    lambda number: st.lists(
        st.builds(
            Place,
            ranks=st.lists(st.integers(0, 4000), max_size=30).map(tuple),
            text=st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])),
            waits_for=st.lists(st.integers(0, number - 1), max_size=3).map(tuple),
            column=st.integers(0, 4),
            is_blamed=st.booleans(),
        ),
        min_size=number,
        max_size=number,
    )
)


@given(PLACES)
def test_the_picture_is_well_formed_and_has_all_boxes_within(standing):
    try:
        root = ElementTree.fromstring(as_picture("title <&>", standing))
    except ElementTree.ParseError:
        texts = "".join(place.text for place in standing)
        assert re.search(r"[\ufffe\uffff]", texts)  # of which XML has none
        return
    width, height = float(root.get("width")), float(root.get("height"))
    boxes = [box for box in root.iter(f"{SVG}rect") if box.get("rx")]
    in_columns = [sum(place.column == column for place in standing) for column in range(5)]
    assert len(boxes) == sum(min(MOST_IN_A_COLUMN, count) for count in in_columns)
    for box in boxes:
        x, y, wide, high = (float(box.get(name)) for name in ("x", "y", "width", "height"))
        assert 0 <= x <= width - wide
        assert 0 <= y <= height - high


def test_the_page_has_the_verdicts_and_loads_nothing():
    standing = [Place((0,), "<b>", (1,), 1, False), Place((1,), "nothing open", (), 0, True)]
    page = as_page("absent: rank 1", ["absent: rank 1 <i>"], standing)
    assert "&lt;i&gt;" in page
    assert "<b>" not in page
    assert "<script" not in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    assert "<td>rank 0</td><td>&lt;b&gt;</td><td>rank 1</td>" in page


def test_reports_alone_give_who_waits_for_whom():
    sources = read_sources([ROOT / "examples/dumps/ras.json"])
    culprits, others = places(sources, findings(sources))
    assert (culprits.ranks, culprits.is_blamed) == ((5,), True)
    assert others.waits_for == (0,)


def test_nothing_found_has_nothing_to_draw():
    assert places(Sources(), []) == []
    assert "who" in as_picture("who", [])
