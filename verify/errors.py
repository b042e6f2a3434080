"""Every error the project raises on purpose, and how they relate.

    LatecomerError
    ├── InputError               the user can fix it: exit code 2, nothing written
    │   ├── ArgumentError        an option or argument: name, value, requirement, remedy
    │   │   └── MissingArgument  it is needed, and was not given
    │   ├── FormatError          a schedule file: place in the file, what is wrong there
    │   ├── TensorError          a tensor the runtime can't carry
    │   └── ScheduleRefused      a schedule for execution that is not proved, or for other ranks
    ├── SynthesisError           no schedule was made
    │   └── SearchTimeout        the time ran out first: nothing is known
    ├── RankFailure              a rank is dead or silent; ``ranks`` names it
    ├── KernelUnavailable        no kernel on these GPUs, on any rank; says why
    └── LossExceeded             the network loses more than training is allowed to bear

Examples:
    >>> from latecomer import synth
    >>> from latecomer.verify.errors import ArgumentError, InputError, LatecomerError
    >>> try:
    ...     synth.generate(8, late=8)
    ... except InputError as error:
    ...     print(error)
    --late = 8: must be a rank, 0..7 for n = 8
    >>> issubclass(ArgumentError, InputError) and issubclass(InputError, LatecomerError)
    True
"""

from __future__ import annotations

from collections.abc import Sequence

from latecomer.verify.core.errors import FormatError, InputError, LatecomerError

__all__ = [
    "ArgumentError",
    "FormatError",
    "InputError",
    "KernelUnavailable",
    "LatecomerError",
    "LossExceeded",
    "MissingArgument",
    "RankFailure",
    "ScheduleRefused",
    "SearchTimeout",
    "SynthesisError",
    "TensorError",
]


class ArgumentError(InputError):
    """An argument is unusable.

    Args:
        name: the argument as the user typed it, for example ``--late``.
        value: what was given.
        requirement: what it has to be.
        remedy: what to do about it (optional).
    """

    def __init__(self, name: str, value: object, requirement: str, remedy: str = "") -> None:
        self.name = name
        self.value = value
        self.requirement = requirement
        self.remedy = remedy
        text = f"{name} = {value!r}: {requirement}"
        super().__init__(f"{text}. {remedy}" if remedy else text)


class MissingArgument(ArgumentError):
    """An argument that is needed was not given.

    Args:
        name: as the user would type it.
        what: what it says.
        remedy: for example a value.
    """

    def __init__(self, name: str, what: str, remedy: str = "") -> None:
        super().__init__(name, None, f"is needed: {what}", remedy)

    def __str__(self) -> str:
        text = f"{self.name} {self.requirement}"
        return f"{text}. {self.remedy}" if self.remedy else text


class TensorError(InputError):
    """A tensor is of a kind that the runtime can't carry (layout, dtype, device)."""


class ScheduleRefused(InputError):
    """The runtime was offered a schedule that is not proved, or not for this group."""


class SynthesisError(LatecomerError):
    """No schedule was made."""


class SearchTimeout(SynthesisError):
    """The time limit came first; whether a schedule exists is unknown."""


class RankFailure(LatecomerError):
    """One or more ranks are dead or silent.

    Attributes:
        ranks: the ranks held responsible, by their number in the group.
        evidence: what was seen, one line per rank.
    """

    def __init__(self, ranks: Sequence[int], message: str, evidence: Sequence[str] = ()) -> None:
        self.ranks = tuple(ranks)
        self.evidence = tuple(evidence)
        super().__init__("\n  ".join([message, *evidence]))


class KernelUnavailable(LatecomerError):
    """A rank can't run the kernel, so none does; all ranks raise it, for the same reason."""


class LossExceeded(LatecomerError):
    """Too much of the gradients is lost on the network, for too long.

    Attributes:
        loss, limit: mean share lost over the last steps, and what is allowed.
        ranks: whose datagrams were lost, the most affected first.
        dropped: what arrived and did not belong, in words (a flood is seen here).
    """

    def __init__(
        self, loss: float, limit: float, steps: int, ranks: Sequence[int], dropped: str = ""
    ) -> None:
        self.loss = loss
        self.limit = limit
        self.ranks = tuple(ranks)
        self.dropped = dropped
        arrived = f"; dropped on arrival: {dropped}" if dropped else ""
        names = ", ".join(map(str, self.ranks[:4]))
        super().__init__(
            f"{loss:.1%} of the datagrams of the last {steps} step(s) were lost, the limit "
            f"(stop_loss) is {limit:.1%}; most from rank(s) {names}{arrived}. "
            "Look at the network, raise bound_s or bound_factor, or train over TCP"
        )
