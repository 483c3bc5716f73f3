"""States of a container, as its pod's status shows them."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Waiting:
    """Not started, or between two runs."""

    reason: str
    message: str = ""

    def as_status(self) -> dict[str, Any]:
        return {"waiting": {"reason": self.reason, **({"message": self.message} if self.message else {})}}


@dataclass(frozen=True, slots=True)
class Running:
    """Its program runs since `started_at` (RFC 3339)."""

    started_at: str

    def as_status(self) -> dict[str, Any]:
        return {"running": {"startedAt": self.started_at}}


@dataclass(frozen=True, slots=True)
class Terminated:
    """One run that is over."""

    exit_code: int
    reason: str
    started_at: str
    finished_at: str
    container_id: str
    message: str = ""

    def as_status(self) -> dict[str, Any]:
        return {
            "terminated": {
                "exitCode": self.exit_code,
                "reason": self.reason,
                "startedAt": self.started_at,
                "finishedAt": self.finished_at,
                "containerID": self.container_id,
                **({"message": self.message} if self.message else {}),
            }
        }


ContainerState = Waiting | Running | Terminated


@dataclass(frozen=True, slots=True)
class ContainerView:
    """One container at one moment: the input of its pod's status."""

    name: str
    image: str
    state: ContainerState
    last: Terminated | None = None
    restart_count: int = 0
    ready: bool = False
    started: bool = False
    container_id: str = ""
    restarts_always: bool = False
    """An init container with restartPolicy Always: a sidecar."""

    @property
    def succeeded(self) -> bool:
        return isinstance(self.state, Terminated) and self.state.exit_code == 0

    def as_status(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "image": self.image,
            "imageID": self.image if self.container_id else "",
            "state": self.state.as_status(),
            "lastState": self.last.as_status() if self.last else {},
            "restartCount": self.restart_count,
            "ready": self.ready,
            "started": self.started,
            **({"containerID": self.container_id} if self.container_id else {}),
        }
