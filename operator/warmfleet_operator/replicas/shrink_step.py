"""One step of a shrink: mark all victims, wait, lower the number. Pure; time is an argument."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

MARKED_SECONDS: Final = 2.0
"""Between the last mark and the lower number: until the ReplicaSet's controller has observed the marks."""
HANDOVER_SECONDS: Final = 5.0
"""Between the last mark and the lower number while routers have what the victims hold computed elsewhere."""
MOVING_SECONDS: Final = 4.0
"""What they have for it; the rest is for their answers."""
LONGEST_SECONDS: Final = 10.0
"""After this the number is lowered although its target or the victims keep changing."""


@dataclass(frozen=True, slots=True)
class Marked:
    """A shrink whose victims carry their marks."""

    replicas: int
    """The number that the Deployment is lowered to."""
    victims: tuple[str, ...]
    """Uids."""
    at_seconds: float
    begun_seconds: float
    """When the first victims of this shrink were marked."""

    def due_seconds(self, *, handing_over: bool) -> float:
        """When the number is lowered at the latest; sooner if the handover ends."""
        return self.at_seconds + (HANDOVER_SECONDS if handing_over else MARKED_SECONDS)


class Step(Enum):
    """What a reconciliation does about the number."""

    SET = auto()
    """Write the wanted number now."""
    MARK = auto()
    """Keep the number; choose victims and mark them."""
    WAIT = auto()
    """Keep the number; the marks are new."""


def shrink_step(
    *,
    current: int,
    wanted: int,
    marked: Marked | None,
    live: frozenset[str],
    now_seconds: float,
    handing_over: bool = False,
) -> Step:
    """The next step from `current` replicas to `wanted`.

    Args:
        current: of the Deployment.
        wanted: what it is to have.
        marked: what this operator has marked; None if nothing, also after a restart.
        live: uids of the pods that count as replicas.
        now_seconds: on a clock that only rises.
        handing_over: what the marked ones hold is being computed elsewhere.
    """
    if wanted >= current or wanted == 0 or len(live) <= wanted:
        return Step.SET  # no pod goes, or all do
    if marked is not None and now_seconds - marked.begun_seconds >= LONGEST_SECONDS:
        return Step.SET
    if marked is None or marked.replicas != wanted or not live.issuperset(marked.victims):
        return Step.MARK
    return Step.SET if now_seconds >= marked.due_seconds(handing_over=handing_over) else Step.WAIT
