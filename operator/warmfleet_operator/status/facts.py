"""Everything that one reconciliation looks at, as a value."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from warmfleet_contracts.resources.conditions import Reason
from warmfleet_contracts.resources.ownership import Claim
from warmfleet_operator.objects.pods import PodView
from warmfleet_operator.status.fleet import FleetView


@dataclass(frozen=True, slots=True)
class Problem:
    """Why nothing will change by itself."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one ModelDeployment after its plan was carried out."""

    deployment: Mapping[str, Any]
    """The ModelDeployment itself."""
    now_seconds: float
    """Since the epoch."""
    no_room_seconds: float
    """For so long a scheduler may look for room before it is called missing."""
    desired_replicas: int = 0
    workers: Mapping[str, Any] | None = None
    """The Deployment; None while there is none."""
    job: Mapping[str, Any] | None = None
    """The Job that fetches the model; None where none is wanted, or none is there yet."""
    job_wanted: bool = False
    pods: tuple[PodView, ...] = ()
    problem: Problem | None = None
    """What the spec or the API server says against it."""
    rival: Claim | None = None
    """Who owns a name that this one wants, and which."""
    taken_name: str = ""
    waits_for: str = ""
    """The other deployment whose upgrade has to end first."""
    fleet: FleetView = field(default_factory=FleetView)
    hit_percent: int | None = None
    url: str = ""
    image: str = ""
    is_fetched: bool = True
    """False: an image or a claim holds the model already."""
