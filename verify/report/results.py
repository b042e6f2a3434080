"""What reports of all families have in common: what follows from their results."""

from __future__ import annotations

from verify.core.verdict import Counterexample, Result, Verdict, overall


class OfResults:
    """What follows from a report's results: its verdict, and the counterexample to show."""

    __slots__ = ()
    results: dict[str, Result]

    @property
    def verdict(self) -> Verdict:
        """The verdict over all properties."""
        return overall(result.verdict for result in self.results.values())

    @property
    def counterexample(self) -> Counterexample | None:
        """The counterexample of the first refuted property, if any."""
        found = (result.counterexample for result in self.results.values())
        return next((c for c in found if c is not None), None)
