"""`status.lastStart`: how long the newest worker took to start, phase by phase. Pure."""

from typing import Any, Final

from pydantic.alias_generators import to_camel

from warmfleet_contracts.cache.start_phases import StartPhases
from warmfleet_operator.objects.pods import PodView
from warmfleet_operator.status.observation import Observation

_MILLISECONDS: Final = 1000


def last_start(observation: Observation) -> dict[str, Any]:
    """Of the newest pod whose worker has loaded its model; the known one stays while no router knows any."""
    workers = observation.fleet.workers
    started = [
        pod
        for pod in observation.pods
        if pod.live and not pod.job and pod.uid in workers and workers[pod.uid].start.load is not None
    ]
    if not started:
        known = (observation.deployment.get("status") or {}).get("lastStart")
        return dict(known) if known else {}
    pod = max(started, key=lambda pod: (pod.created_seconds, pod.name))
    return {"pod": pod.name, "phaseMilliseconds": _phases(pod, workers[pod.uid].start)}


def _phases(pod: PodView, start: StartPhases) -> dict[str, int]:
    """Times of the pod are whole seconds, and belong to the first run of its container."""
    phases: dict[str, float] = {}
    if not pod.engine.restarts and pod.scheduled_seconds and pod.engine.running_since_seconds:
        phases["schedule"] = pod.scheduled_seconds - pod.created_seconds
        phases["fetch"] = pod.engine.running_since_seconds - pod.scheduled_seconds
    phases |= start.by_name()
    return {to_camel(name): max(0, round(seconds * _MILLISECONDS)) for name, seconds in phases.items()}
