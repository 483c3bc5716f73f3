"""The status of a ModelDeployment, and whether it is worth writing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from warmfleet_contracts.names import COMPONENT_LABEL, MODEL_DEPLOYMENT_LABEL, WORKER_COMPONENT
from warmfleet_contracts.resources.model_fetch import fetched_model
from warmfleet_operator.objects.rollouts import template_revision
from warmfleet_operator.objects.served_names import name_claims, request_names, served_names
from warmfleet_operator.objects.times import time_of
from warmfleet_operator.status.conditions import conditions_of, written
from warmfleet_operator.status.facts import Facts

GAUGE_SECONDS: Final = 60.0
"""Figures that always move are written no more often than this, unless something else is written anyway."""
GAUGE_STEP_PERCENT: Final = 5
_PERCENTAGES: Final = ("usedPercent", "hitPercent")


@dataclass(frozen=True, slots=True)
class Gauges:
    """When figures that always move were written last."""

    written_seconds: float
    """On a monotonic clock."""


def status_of(facts: Facts) -> dict[str, Any]:
    """The whole status: what is not in it is removed."""
    metadata = facts.deployment["metadata"]
    generation = int(metadata["generation"])
    workers = (facts.workers or {}).get("status") or {}
    ready = int(workers.get("readyReplicas") or 0)
    before = (facts.deployment.get("status") or {}).get("conditions") or ()
    selector = {MODEL_DEPLOYMENT_LABEL: metadata["name"], COMPONENT_LABEL: WORKER_COMPONENT}
    status: dict[str, Any] = {
        "observedGeneration": generation,
        "selector": ",".join(f"{name}={value}" for name, value in sorted(selector.items())),
        "replicas": int(workers.get("replicas") or 0),
        "readyReplicas": ready,
        "updatedReplicas": int(workers.get("updatedReplicas") or 0),
        "desiredReplicas": facts.desired_replicas,
        "readySummary": f"{ready}/{facts.desired_replicas}",
        "servedNames": served_names(facts.deployment),
        "nameClaims": name_claims(facts.deployment, time_of(facts.now_seconds)),
        "url": facts.url,
        "conditions": written(conditions_of(facts), before, generation, facts.now_seconds),
    }
    if facts.workers is not None:
        status["revision"] = template_revision(facts.workers)
    if facts.image:
        status["image"] = facts.image
    accelerator = (facts.deployment.get("spec") or {}).get("accelerator")
    if accelerator:
        name = accelerator.get("resourceName", "nvidia.com/gpu")
        status["accelerator"] = f"{accelerator.get('count', 1)} x {name}"
    if model := _model(facts):
        status["model"] = model
    return status | _figures(facts)


def _model(facts: Facts) -> dict[str, Any]:
    """What the fetch left behind; what was known stays known while no pod says it."""
    for pod in facts.pods:
        model = fetched_model(pod.fetch.message) if pod.fetch.exit_code == 0 else None
        if model is not None:
            return {"digest": model[0], "sizeBytes": model[1]}
    known = (facts.deployment.get("status") or {}).get("model")
    return dict(known) if known else {}


def _figures(facts: Facts) -> dict[str, Any]:
    """From the routers; nothing is said of what no router knows."""
    figures = [
        facts.fleet.workers[pod.uid] for pod in facts.pods if pod.live and pod.uid in facts.fleet.workers
    ]
    blocks = sum(worker.total_blocks for worker in figures)
    if not blocks:
        return {}
    pinned = sum(worker.pinned_blocks for worker in figures)
    cache = {
        "capacityTokens": sum(worker.total_blocks * worker.block_size_tokens for worker in figures),
        "usedPercent": min(100, round(100 * pinned / blocks)),
    }
    if facts.hit_percent is not None:
        cache["hitPercent"] = facts.hit_percent
    held = sum(facts.fleet.held.get(name, 0) for name in request_names(facts.deployment))
    return {"kvCache": cache, "waitingRequests": held + sum(worker.waiting for worker in figures)}


def to_write(
    wanted: Mapping[str, Any], current: Mapping[str, Any], gauges: Gauges, now_seconds: float
) -> dict[str, Any] | None:
    """The status to write; None while what stands there is good enough.

    Percentages and the number of waiting requests move all the time: they alone are no reason to write until
    a minute after the last write, and a percentage only after five points.
    """
    if _settled(wanted) != _settled(current):
        return dict(wanted)
    if now_seconds - gauges.written_seconds < GAUGE_SECONDS or not _gauges_moved(wanted, current):
        return None
    return dict(wanted)


def _settled(status: Mapping[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in status.items() if name != "waitingRequests"}
    cache = {name: value for name, value in rest.get("kvCache", {}).items() if name not in _PERCENTAGES}
    return rest | {"kvCache": cache}


def _gauges_moved(wanted: Mapping[str, Any], current: Mapping[str, Any]) -> bool:
    if wanted.get("waitingRequests", 0) != current.get("waitingRequests", 0):
        return True
    new, old = wanted.get("kvCache") or {}, current.get("kvCache") or {}
    for name in _PERCENTAGES:
        if (name in new) != (name in old):
            return True
        if name in new and abs(new[name] - old[name]) >= GAUGE_STEP_PERCENT:
            return True
    return False
