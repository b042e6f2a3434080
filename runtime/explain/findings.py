"""All that the files of a job tell: dumps and reports each give verdicts, and one set may decide
what the other leaves open.
"""

from __future__ import annotations

from collections.abc import Sequence

from latecomer.runtime.explain.job import job_of
from latecomer.runtime.explain.launches import verdicts_of_reports
from latecomer.runtime.explain.slow import slow_verdicts
from latecomer.runtime.explain.sources import Sources
from latecomer.runtime.explain.standing import Place, places_of, places_of_verdicts
from latecomer.runtime.explain.verdicts import Verdict, verdicts

HOLDS = ("mismatch", "absent", "stuck", "cycle", "p2p", "hung", "nodump")
"""Kinds of verdicts by which nothing goes on."""


def findings(sources: Sources, world_size: int | None = None) -> list[Verdict]:
    """What holds up the job, from dumps first, which tell more; at least one verdict.

    Who is slow is told of a job in which nothing stands.
    """
    found = []
    if sources.records:
        found = verdicts(job_of(sources.records, world_size), stands=sources.stands)
    if sources.reports:
        reported = verdicts_of_reports(sources.reports)
        named = {rank for verdict in reported for rank in verdict.ranks}
        # of whom there is no dump, a report may tell why
        found = [each for each in found if each.kind != "nodump" or not named >= set(each.ranks)]
        found += reported
    if not any(verdict.kind in HOLDS for verdict in found):
        found += slow_verdicts(sources.together)
    found = found or [Verdict("ok", ())]
    blaming = [verdict for verdict in found if verdict.kind != "ok"]
    return blaming or found[:1]


def places(
    sources: Sources, found: Sequence[Verdict], world_size: int | None = None
) -> list[Place]:
    """Where the ranks stand, for a picture of what was found."""
    if sources.records:
        return places_of(job_of(sources.records, world_size), found)
    return places_of_verdicts(found)
