"""Computes the status of a ModelDeployment, and whether it must be written. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from warmfleet_contracts.names import COMPONENT_LABEL, MODEL_DEPLOYMENT_LABEL, WORKER_COMPONENT
from warmfleet_contracts.resources.conditions import RELEASE_CONFLICT
from warmfleet_contracts.resources.fetch_outcome import fetched_model
from warmfleet_operator.objects.pods import PodView
from warmfleet_operator.objects.rollouts import template_revision
from warmfleet_operator.objects.served_names import name_claims, served_names
from warmfleet_operator.objects.times import time_of
from warmfleet_operator.routers.fleet import WorkerFigures
from warmfleet_operator.status.conditions import conditions_of, status_conditions
from warmfleet_operator.status.observation import Observation
from warmfleet_operator.status.scaling_status import scaling_status, wanted_replicas
from warmfleet_operator.status.start_status import last_start

GAUGE_SECONDS: Final = 60.0
"""Gauges alone cause a write at most this often; any other change writes them, too."""
GAUGE_STEP_PERCENT: Final = 5
_MOST_INT32: Final = 2**31 - 1
_MOST_INT64: Final = 2**63 - 1
"""The API server refuses a whole status for one number beyond its format."""
_PERCENTAGES: Final = ("usedPercent", "hitPercent")
_OF_A_COMMIT: Final = ("revision", "resolvedFrom")
_OF_A_FETCH: Final = ("digest", "sizeBytes")


@dataclass(frozen=True, slots=True)
class Gauges:
    """When the gauges of a deployment were written last."""

    written_seconds: float
    """On a monotonic clock."""


def status_of(observation: Observation) -> dict[str, Any]:
    """The whole status: applying it removes every field that it does not name."""
    metadata = observation.deployment["metadata"]
    generation = int(metadata["generation"])
    workers = (observation.workers or {}).get("status") or {}
    ready = int(workers.get("readyReplicas") or 0)
    before = (observation.deployment.get("status") or {}).get("conditions") or ()
    selector = {MODEL_DEPLOYMENT_LABEL: metadata["name"], COMPONENT_LABEL: WORKER_COMPONENT}
    status: dict[str, Any] = {
        "observedGeneration": generation,
        "selector": ",".join(f"{name}={value}" for name, value in sorted(selector.items())),
        "replicas": int(workers.get("replicas") or 0),
        "readyReplicas": ready,
        "updatedReplicas": int(workers.get("updatedReplicas") or 0),
        "desiredReplicas": wanted_replicas(observation),
        "readySummary": f"{ready}/{observation.desired_replicas}",
        "servedNames": served_names(observation.deployment),
        "nameClaims": name_claims(observation.deployment, time_of(observation.now_seconds)),
        "url": observation.url,
        "release": observation.release,
        "conditions": status_conditions(
            conditions_of(observation), before, generation, observation.now_seconds
        ),
    }
    if observation.workers is not None:
        status["revision"] = template_revision(observation.workers)
    if observation.image:
        status["image"] = observation.image
    accelerator = (observation.deployment.get("spec") or {}).get("accelerator")
    if accelerator:
        name = accelerator.get("resourceName", "nvidia.com/gpu")
        status["accelerator"] = f"{accelerator.get('count', 1)} x {name}"
    if scaling := scaling_status(observation):
        status["scaling"] = scaling
    if start := last_start(observation):
        status["lastStart"] = start
    if bits := _equal_bits(observation):
        status["equalBits"] = bits
    if model := _model(observation):
        status["model"] = model
    return status | _figures(observation)


def _model(observation: Observation) -> dict[str, Any]:
    """The commit of the newest revision's model, and what its fetch reported.

    What is known stays while neither is reported, but not beside another commit, nor of a model that no pod
    fetches any more.
    """
    known = (observation.deployment.get("status") or {}).get("model") or {}
    if not observation.commit and observation.problem is not None:
        return _chosen(known, _OF_A_COMMIT) | _fetched(observation, _chosen(known, _OF_A_FETCH))
    commit = {"revision": observation.commit, "resolvedFrom": observation.resolved_from}
    same = observation.is_fetched and known.get("revision", "") == observation.commit
    before = _chosen(known, _OF_A_FETCH) if same else {}
    return {name: text for name, text in commit.items() if text} | _fetched(observation, before)


def _fetched(observation: Observation, before: Mapping[str, Any]) -> dict[str, Any]:
    """Digest and size by the newest revision's pods or its Job; those from `before` while none reports."""
    for pod in _fetching_pods(observation):
        model = fetched_model(pod.fetch.message) if pod.fetch.exit_code == 0 else None
        if model is not None:
            return dict(zip(_OF_A_FETCH, model, strict=True))
    return dict(before)


def _fetching_pods(observation: Observation) -> Iterator[PodView]:
    """Those of the newest revision and of the Job; pods of an earlier revision may have another model."""
    workers, job = observation.workers, observation.job
    revision = None if workers is None else template_revision(workers)
    name = None if job is None else job["metadata"]["name"]
    return (pod for pod in observation.pods if (pod.job == name if pod.job else pod.revision == revision))


def _chosen(known: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: known[name] for name in names if name in known}


def _equal_bits(observation: Observation) -> str:
    """Whether every worker promises them; what is known stays while routers do not know."""
    stated = {worker.exact for worker in _known_workers(observation)}
    if False in stated:
        return "NotPromised"
    if stated == {True}:
        return "Promised"
    return str((observation.deployment.get("status") or {}).get("equalBits", ""))


def _known_workers(observation: Observation) -> list[WorkerFigures]:
    """Those of live pods that a router knows."""
    workers = observation.fleet.workers
    return [workers[pod.uid] for pod in observation.pods if pod.live and pod.uid in workers]


def _figures(observation: Observation) -> dict[str, Any]:
    """Figures from the routers; none for workers that no router knows."""
    figures = _known_workers(observation)
    held = sum(observation.fleet.held.get(name, 0) for name in observation.request_names)
    waiting = held + sum(worker.waiting for worker in figures)
    requests = {"waitingRequests": min(waiting, _MOST_INT32)}
    blocks = sum(worker.total_blocks for worker in figures)
    if not blocks:
        return requests if waiting else {}  # requests wait for a fleet that wakes
    pinned = sum(worker.pinned_blocks for worker in figures)
    cache = {
        "capacityTokens": min(
            sum(worker.total_blocks * worker.block_size_tokens for worker in figures), _MOST_INT64
        ),
        "usedPercent": min(100, round(100 * pinned / blocks)),
    }
    if observation.hit_percent is not None:
        cache["hitPercent"] = observation.hit_percent
    return {"kvCache": cache} | requests


def to_write(
    wanted: Mapping[str, Any], current: Mapping[str, Any], gauges: Gauges, now_seconds: float
) -> dict[str, Any] | None:
    """The status to write; None if the current one is close enough.

    Percentages and the number of waiting requests change all the time. They alone cause a write only
    `GAUGE_SECONDS` after the last one, and a percentage only when it changed by `GAUGE_STEP_PERCENT`.
    """
    if _settled(wanted) != _settled(current):
        return dict(wanted)
    if now_seconds - gauges.written_seconds < GAUGE_SECONDS or not _gauges_changed(wanted, current):
        return None
    return dict(wanted)


def _settled(status: Mapping[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in status.items() if name != "waitingRequests"}
    # Another release's operator owns that one; applying the status leaves it where it is.
    own = [item for item in status.get("conditions") or () if item["type"] != RELEASE_CONFLICT]
    rest["conditions"] = own
    cache = {name: value for name, value in rest.get("kvCache", {}).items() if name not in _PERCENTAGES}
    return rest | {"kvCache": cache}


def _gauges_changed(wanted: Mapping[str, Any], current: Mapping[str, Any]) -> bool:
    if wanted.get("waitingRequests", 0) != current.get("waitingRequests", 0):
        return True
    new, old = wanted.get("kvCache") or {}, current.get("kvCache") or {}
    for name in _PERCENTAGES:
        if (name in new) != (name in old):
            return True
        if name in new and abs(new[name] - old[name]) >= GAUGE_STEP_PERCENT:
            return True
    return False
