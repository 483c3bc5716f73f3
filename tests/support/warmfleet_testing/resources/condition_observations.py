"""Observations that produce every condition, by what they show, and what kstatus makes of each."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from warmfleet_contracts.resources.conditions import Reason
from warmfleet_contracts.resources.ownership import Claim
from warmfleet_operator.objects.pods import ContainerView, PodView
from warmfleet_operator.routers.fleet import FleetView
from warmfleet_operator.scaling.decision import ScalingReason
from warmfleet_operator.status.observation import Observation
from warmfleet_operator.status.problem import Problem
from warmfleet_operator.status.stalls import CRASHES
from warmfleet_operator.status.status import status_of
from warmfleet_testing.resources.observations import (
    NO_ROOM_SECONDS,
    NOW,
    advice,
    decided,
    deployment,
    figures,
    fleet,
    job,
    pod,
    serving,
    workers,
)

OWNER = Claim("other", "older", "uid-older", "2025-01-01T00:00:00Z", ("m",), ("2025-01-01T00:00:00Z",))
WAITED = NO_ROOM_SECONDS + 1


def unready(**fields: Any) -> PodView:
    return pod("m-2", ready=False, **fields)


def troubled(pod_view: PodView, **fields: Any) -> Observation:
    return serving(workers=workers(ready=1), pods=(pod("m-1"), pod_view), fleet=fleet("m-1"), **fields)


def unschedulable(seconds: float, **fields: Any) -> PodView:
    return unready(
        phase="Pending",
        fetch=ContainerView(),
        engine=ContainerView(),
        unschedulable="0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        unschedulable_since_seconds=NOW - seconds,
        **fields,
    )


def seen_by(routers: dict[str, set[int]]) -> FleetView:
    """Two routers that answer; by worker, which of them count it as ready."""
    known = {f"uid-{name}": figures(ready_in=frozenset(places)) for name, places in routers.items()}
    return FleetView(routers=2, answering=2, workers=known, polled=True)


def failed(condition: str, reason: str) -> dict[str, str]:
    status = "True" if condition == "ReplicaFailure" else "False"
    return {"type": condition, "status": status, "reason": reason, "message": "exceeded quota"}


def stopped(**fields: Any) -> Observation:
    none = {"desired_replicas": 0, "workers": workers(wanted=0, ready=0), "pods": (), "fleet": fleet()}
    return serving(**{**none, **fields})


def scaled(mode: str = "Advisory", **fields: Any) -> Observation:
    """A fleet with autoscaling that is at rest, by its advice."""
    scaling = {"mode": mode, "minReplicas": 1, "maxReplicas": 8}
    return serving(**{"deployment": deployment(autoscaling=scaling), "advice": advice(), **fields})


def asleep(**fields: Any) -> Observation:
    """A fleet whose last replica has gone because nothing was asked for."""
    scaling = {"mode": "Active", "minReplicas": 0, "maxReplicas": 8}
    idle = decided(0, ScalingReason.IDLE, from_replicas=0)
    return stopped(**{"deployment": deployment(autoscaling=scaling), "advice": advice(0, idle), **fields})


def over_budget(**spec: Any) -> Observation:
    """Two of three replicas run, and a quota refuses the third."""
    return scaled(
        deployment=deployment(replicas=3, autoscaling={"maxReplicas": 8}, **spec),
        desired_replicas=3,
        workers=workers(
            wanted=3, ready=2, replicas=2, conditions=(failed("ReplicaFailure", "FailedCreate"),)
        ),
        advice=advice(unschedulable=1),
    )


OBSERVATIONS: Final[dict[str, Observation]] = {
    "advice is given": scaled(),
    "the number follows the demand": scaled("Active"),
    "another client writes the number": scaled(
        "Active", external_scaler="another client set spec.replicas from 2 to 5"
    ),
    "advice is paused": scaled("Paused", advice=None),
    "advice is suspended": stopped(deployment=deployment(suspend=True, autoscaling={"maxReplicas": 8})),
    "advice lacks signals": scaled(advice=advice(missing="no router reports totals")),
    "a quota refuses a replica": over_budget(),
    "everything is ready": serving(),
    "the volume holds the model": serving(is_fetched=False),
    "suspended": stopped(deployment=deployment(suspend=True)),
    "suspended, stopping": replace(
        stopped(deployment=deployment(suspend=True)), pods=(pod(terminating=True),)
    ),
    "asleep": asleep(),
    "falling asleep": asleep(pods=(pod(terminating=True),)),
    "asleep, the Job fetches": asleep(job_wanted=True, job=job()),
    "asleep, the Job has failed": asleep(job_wanted=True, job=job("Failed")),
    "asleep, name taken": asleep(name_owner=OWNER, contested_name="m"),
    "no replicas": stopped(deployment=deployment(replicas=0)),
    "just made": serving(workers=None, pods=(), fleet=fleet()),
    "starting": serving(workers=workers(ready=0), pods=(unready(fetch=ContainerView()),), fleet=fleet()),
    "pods fetch": serving(
        workers=workers(ready=0), pods=(unready(fetch=ContainerView(running=True)),), fleet=fleet()
    ),
    "the Job is not there": serving(job_wanted=True),
    "the Job fetches": serving(job_wanted=True, job=job(), workers=workers(ready=0), fleet=fleet()),
    "the Job is done": serving(job_wanted=True, job=job("Complete")),
    "the Job has failed": serving(job_wanted=True, job=job("Failed")),
    "waits for another's upgrade": serving(upgrade_blocked_by="models/other"),
    "a fetch failed": troubled(
        unready(fetch=ContainerView(waiting="CrashLoopBackOff", exit_code=1, message="hub: 401", restarts=2))
    ),
    "image": troubled(unready(engine=ContainerView(waiting="ImagePullBackOff", message="no such image"))),
    "configuration": troubled(
        unready(engine=ContainerView(waiting="CreateContainerConfigError", message='secret "x" not found'))
    ),
    "crash loop": troubled(
        unready(engine=ContainerView(waiting="CrashLoopBackOff", restarts=CRASHES, exit_code=2))
    ),
    "no room for surge": serving(
        workers=workers(ready=2, updated=1, replicas=3),
        pods=(
            pod("m-1", revision="old"),
            pod("m-2", revision="old"),
            replace(unschedulable(WAITED), name="m-3"),
        ),
    ),
    "unschedulable": serving(workers=workers(ready=0), pods=(unschedulable(WAITED),), fleet=fleet()),
    "startup timeout": serving(
        workers=workers(ready=0, conditions=(failed("Progressing", "ProgressDeadlineExceeded"),)),
        deployment=deployment(rollout={"startupTimeoutSeconds": 60}),
    ),
    "pods are refused": serving(workers=workers(conditions=(failed("ReplicaFailure", "FailedCreate"),))),
    "invalid": serving(problem=Problem(Reason.INVALID_SPEC, "spec.podTemplate: no")),
    "unsupported": serving(problem=Problem(Reason.UNSUPPORTED_SPEC, "spec.accelerator.count: is 2")),
    "a branch is resolved": serving(
        problem=Problem(Reason.RESOLVING_REVISION, "asking https://huggingface.co which commit a/b@main is")
    ),
    "a branch is not known": serving(
        problem=Problem(Reason.REVISION_UNRESOLVED, "a/b has no branch x (404)")
    ),
    "the hub does not answer": serving(problem=Problem(Reason.HUB_UNREACHABLE, "timeout")),
    "an object is another's": serving(problem=Problem(Reason.OBJECT_CONFLICT, "Service m exists")),
    "name taken": serving(name_owner=OWNER, contested_name="m"),
    "name taken, starting": serving(
        name_owner=OWNER, contested_name="m", workers=workers(ready=0), pods=(unready(),), fleet=fleet()
    ),
    "no router": serving(fleet=fleet(routers=0, answering=0)),
    "no router answers": serving(fleet=fleet(answering=0, problem="router at 10.0.0.1: refused")),
    "routers were not polled": serving(fleet=FleetView()),
    "routers know no worker": serving(fleet=fleet("another")),
    "one router knows no worker": serving(fleet=seen_by({"m-1": {0}, "m-2": {0}})),
    "each router knows one worker": serving(fleet=seen_by({"m-1": {0}, "m-2": {1}})),
}


def kstatus(resource: Mapping[str, Any]) -> str:
    """What kstatus computes for a custom resource: sigs.k8s.io/cli-utils/pkg/kstatus/status."""
    status = resource.get("status", {})
    if (
        status.get("observedGeneration", resource["metadata"]["generation"])
        != resource["metadata"]["generation"]
    ):
        return "InProgress"
    for condition in status.get("conditions", ()):
        if condition["type"] == "Reconciling" and condition["status"] == "True":
            return "InProgress"
        if condition["type"] == "Stalled" and condition["status"] == "True":
            return "Failed"
    ready = [item["status"] for item in status.get("conditions", ()) if item["type"] == "Ready"]
    return "Current" if ready in ([], ["True"]) else "InProgress"


KSTATUS: Final[Mapping[str, frozenset[str]]] = {
    "Current": frozenset(
        {
            "everything is ready",
            "advice is given",
            "the number follows the demand",
            "another client writes the number",
            "advice is paused",
            "advice is suspended",
            "advice lacks signals",
            "the volume holds the model",
            "the Job is done",
            "the Job is not there",
            "suspended",
            "no replicas",
            "asleep",
            "each router knows one worker",
        }
    ),
    "InProgress": frozenset(
        {
            "suspended, stopping",
            "falling asleep",
            "asleep, the Job fetches",
            "a quota refuses a replica",
            "just made",
            "starting",
            "a branch is resolved",
            "pods fetch",
            "the Job fetches",
            "waits for another's upgrade",
            "no router",
            "no router answers",
            "routers were not polled",
            "routers know no worker",
            "one router knows no worker",
            "name taken, starting",
        }
    ),
    "Failed": frozenset(
        {
            "the Job has failed",
            "a fetch failed",
            "image",
            "configuration",
            "crash loop",
            "no room for surge",
            "unschedulable",
            "startup timeout",
            "pods are refused",
            "invalid",
            "unsupported",
            "a branch is not known",
            "the hub does not answer",
            "an object is another's",
            "name taken",
            "asleep, the Job has failed",
            "asleep, name taken",
        }
    ),
}


def reported(observation: Observation) -> dict[str, Any]:
    """The ModelDeployment with the status that the operator writes."""
    return {**observation.deployment, "status": status_of(observation)}
