"""What a simulation refuses.

SimulationError
├── TraceError         a trace cannot be read; the text names the line
├── WorkloadError      parameters of a generated workload are impossible
├── ObjectiveError     a file of service level objectives is unusable
├── SettingError       a policy has no such setting
├── PlacementError     a prompt has no replica, where each is to have one
└── UnknownNameError   no GPU, model, routing or scaling policy has that name
"""

from collections.abc import Iterable

from warmfleet_contracts.errors import WarmfleetError


class SimulationError(WarmfleetError):
    """A simulation cannot be run as asked; the text is fit to be shown."""


class TraceError(SimulationError):
    """A trace cannot be read; the text names file and line."""


class WorkloadError(SimulationError):
    """Parameters of a generated workload are impossible; the text names the field."""


class ObjectiveError(SimulationError):
    """A file of service level objectives is unusable; the text names the field."""


class SettingError(SimulationError):
    """A policy has no such setting; the text has what it needs."""

    def __init__(self, policy: str, needed: str, given: str) -> None:
        super().__init__(f"{policy}:{given[:64]} is no setting; {policy} needs {needed}, as numbers above 0")


class PlacementError(SimulationError):
    """A prompt has no replica, where each is to have one; the text has the request's prompt tokens."""


class UnknownNameError(SimulationError):
    """No entry of a table has the name."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        super().__init__(f"no {kind} is called {name[:64]!r}; known are {', '.join(known)}")
