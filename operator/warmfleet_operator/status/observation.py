"""Everything that conditions and status are computed from, as a value."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from warmfleet_contracts.resources.ownership import Claim
from warmfleet_operator.objects.pods import PodView
from warmfleet_operator.routers.fleet import FleetView
from warmfleet_operator.scaling.advice import Advice
from warmfleet_operator.status.problem import Problem


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of one ModelDeployment after its plan was carried out."""

    deployment: Mapping[str, Any]
    """The ModelDeployment, as the API server holds it."""
    now_seconds: float
    """Since the epoch."""
    no_room_seconds: float
    """A pod without a node for longer than this stalls the deployment."""
    desired_replicas: int = 0
    external_scaler: str = ""
    """Which number of replicas another client wrote while autoscaling sets it; empty if none did."""
    workers: Mapping[str, Any] | None = None
    """The Deployment of workers; None before it exists."""
    job: Mapping[str, Any] | None = None
    """The Job that fetches the model; None where none is desired or none exists yet."""
    job_wanted: bool = False
    pods: tuple[PodView, ...] = ()
    problem: Problem | None = None
    """Why the spec has no objects, or why the API server refuses one."""
    carried_out: bool = True
    """Whether the writes that follow from the spec were made or refused; without them no number is set."""
    name_owner: Claim | None = None
    """Another deployment that owns `contested_name`, a served name of this one."""
    contested_name: str = ""
    request_names: tuple[str, ...] = ()
    """By which requests reach it: none that another deployment owns."""
    upgrade_blocked_by: str = ""
    """The deployment whose upgrade has to finish before this one may start: `namespace/name`."""
    fleet: FleetView = field(default_factory=FleetView)
    hit_percent: int | None = None
    """Prefix cache hits of the last minutes, in percent of prompt tokens; None before any traffic."""
    advice: Advice | None = None
    """How many replicas are wanted; None where nothing decides it, and before the first tick."""
    url: str = ""
    release: str = ""
    """The release whose operator observes: `namespace/name`."""
    image: str = ""
    """That the engine has in the Deployment's pod template; empty before it exists."""
    commit: str = ""
    """Of the model's repository on the hub; empty for other sources, and while it is not known."""
    resolved_from: str = ""
    """The branch or tag that `commit` is: `owner/name@revision`; empty where the spec names the commit."""
    is_fetched: bool = True
    """False where an image or a claim already holds the model."""

    @property
    def asleep(self) -> bool:
        """Whether autoscaling has given up the last replica until a request wakes the fleet."""
        spec = self.deployment.get("spec") or {}
        scaling = spec.get("autoscaling")
        if not scaling or scaling.get("mode", "Active") != "Active" or spec.get("suspend"):
            return False
        return self.problem is None and self.desired_replicas == 0
