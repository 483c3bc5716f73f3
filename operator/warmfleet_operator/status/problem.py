"""A reason for which a ModelDeployment makes no progress."""

from dataclasses import dataclass

from warmfleet_contracts.resources.conditions import Reason


@dataclass(frozen=True, slots=True)
class Problem:
    """A condition's reason and message."""

    reason: Reason
    message: str
