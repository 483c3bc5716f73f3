"""Inputs for the operator's pure parts: deployments, children, pods and routers."""

from typing import Any

from warmfleet_operator.objects.pods import ContainerView, PodView
from warmfleet_operator.routers.fleet import FleetView, WorkerFigures
from warmfleet_operator.scaling.advice import Advice
from warmfleet_operator.scaling.decision import DecisionInputs, LimitingRule, ScalingDecision, ScalingReason
from warmfleet_operator.status.observation import Observation

NOW = 1_800_000_000.0
NO_ROOM_SECONDS = 120.0
URL = "http://warmfleet-router.warmfleet.svc/v1"


def deployment(name: str = "m", **spec: Any) -> dict[str, Any]:
    """A ModelDeployment of the API server."""
    return {
        "apiVersion": "warmfleet.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {
            "name": name,
            "namespace": "models",
            "uid": f"uid-{name}",
            "generation": 3,
            "resourceVersion": "10",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "model": {"source": {"catalog": {"name": "smollm2-135m-instruct"}}},
            "kvCache": {"size": "64Mi"},
            "replicas": 2,
            **spec,
        },
    }


def workers(
    *,
    wanted: int = 2,
    ready: int = 2,
    updated: int | None = None,
    replicas: int | None = None,
    conditions: tuple[dict[str, Any], ...] = (),
    **annotations: str,
) -> dict[str, Any]:
    """A Deployment with its status."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "m",
            "namespace": "models",
            "uid": "uid-workers",
            "generation": 1,
            "resourceVersion": "11",
            "annotations": annotations,
            "labels": {"warmfleet.dev/model-deployment": "m"},
        },
        "spec": {
            "replicas": wanted,
            "template": {"metadata": {"labels": {"warmfleet.dev/revision": "new"}}},
        },
        "status": {
            "observedGeneration": 1,
            "replicas": wanted if replicas is None else replicas,
            "readyReplicas": ready,
            "availableReplicas": ready,
            "updatedReplicas": wanted if updated is None else updated,
            "conditions": list(conditions),
        },
    }


def pod(name: str = "m-1", **fields: Any) -> PodView:
    """A worker that serves."""
    return PodView(
        **{
            "name": name,
            "uid": f"uid-{name}",
            "revision": "new",
            "job": "",
            "created_seconds": NOW - 600,
            "phase": "Running",
            "ready": True,
            "terminating": False,
            "unschedulable": "",
            "unschedulable_since_seconds": 0.0,
            "scheduling_gates": (),
            "engine": ContainerView(running=True),
            "fetch": ContainerView(exit_code=0),
            **fields,
        }
    )


def job(ended: str = "") -> dict[str, Any]:
    """The Job that fetches the model; `ended`: Complete, Failed, or empty while it runs."""
    conditions = [{"type": ended, "status": "True", "lastTransitionTime": "2027-01-15T07:59:50Z"}]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "m-fetch", "namespace": "models", "uid": "uid-job", "resourceVersion": "12"},
        "status": {"conditions": conditions if ended else []},
    }


def figures(**fields: Any) -> WorkerFigures:
    """One worker as routers see it."""
    return WorkerFigures(
        **{
            "ready_in": frozenset({0, 1}),
            "total_blocks": 1000,
            "pinned_blocks": 100,
            "block_size_tokens": 16,
            "waiting": 0,
            **fields,
        }
    )


def fleet(*names: str, routers: int = 2, answering: int = 2, problem: str = "") -> FleetView:
    """What routers report of the workers of these names."""
    known = {f"uid-{name}": figures() for name in names}
    return FleetView(routers, answering, problem, known, polled=True)


def decided(
    to: int = 3, reason: ScalingReason = ScalingReason.DEMAND_ABOVE_SUPPLY, **fields: Any
) -> ScalingDecision:
    """A decision that two replicas become `to`."""
    values: dict[str, Any] = {
        "at_seconds": NOW,
        "from_replicas": 2,
        "to_replicas": to,
        "reason": reason,
        "recommendations": {"tokens": to, "compute": 1},
        "limit": LimitingRule.NONE,
        "inputs": DecisionInputs(spec_replicas=2, ready_replicas=2, demand_tokens=190, supply_tokens=95),
    }
    return ScalingDecision(**{**values, **fields})


def advice(wanted: int = 2, decision: ScalingDecision | None = None, **fields: Any) -> Advice:
    """What autoscaling advises."""
    made = decision or decided(wanted)
    values: dict[str, Any] = {"decision": made, "reason": made.reason, "latest": made}
    return Advice(wanted=wanted, **{**values, **fields})


def serving(**fields: Any) -> Observation:
    """An observation of two ready replicas, with other `fields`."""
    return Observation(
        **{
            "deployment": deployment(),
            "now_seconds": NOW,
            "no_room_seconds": NO_ROOM_SECONDS,
            "desired_replicas": 2,
            "workers": workers(),
            "pods": (pod("m-1"), pod("m-2")),
            "fleet": fleet("m-1", "m-2"),
            "request_names": ("m", "models/m"),
            "url": URL,
            "image": "worker:1",
            **fields,
        }
    )
