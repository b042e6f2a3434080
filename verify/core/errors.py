"""The errors that the trusted core raises; :mod:`latecomer.verify.errors` has the whole family."""

from __future__ import annotations


class LatecomerError(Exception):
    """Base of all errors raised on purpose by this project."""


class InputError(LatecomerError):
    """A mistake the user can fix."""


class FormatError(InputError):
    """A schedule file can't be read; ``path`` is the file, the text names field and place."""

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"{path}: {problem}")
