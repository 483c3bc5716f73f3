"""What a model computed in a step."""

from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar


class RowArray(Protocol):
    """Rows of numbers, [rows, columns], where the model computes: a numpy array, or a tensor of torch."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: list[int] | slice, /) -> Self: ...


Rows = TypeVar("Rows", bound=RowArray)


@dataclass(frozen=True, slots=True)
class Computed(Generic[Rows]):
    """Hidden states, and tokens if they were asked for; valid until the next step begins."""

    hidden: Rows
    """After the last layer and before the final norm, of the wanted rows: [wanted, hidden]."""
    finite: list[bool]
    """Of each chunk: whether all of its hidden states are finite."""
    logits: Rows | None
    """Of the wanted rows, [wanted, vocabulary], if tokens were chosen."""
    token_ids: list[int | None]
    """One for each token that was asked for; None where the logits are not finite."""
    seconds: float
    """That the step took."""


@dataclass(frozen=True, slots=True)
class StepRows(Generic[Rows]):
    """What the layers made of a step's tokens; valid until the next step begins."""

    hidden: Rows
    """As `Computed.hidden`, of all rows."""
    logits: Rows | None = None
    """Of all rows, where they were computed along with them."""
