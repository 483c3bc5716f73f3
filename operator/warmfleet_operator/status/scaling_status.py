"""`status.desiredReplicas` and `status.scaling`: what autoscaling wants, and how it came to that. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from pydantic.alias_generators import to_camel

from warmfleet_operator.objects.times import time_of
from warmfleet_operator.scaling.advice import Advice, Change, explained
from warmfleet_operator.scaling.decision import DecisionInputs
from warmfleet_operator.status.observation import Observation

MAX_DECISIONS: Final = 10
_MAX_MESSAGE_LENGTH: Final = 1024


def wanted_replicas(observation: Observation) -> int:
    """`status.desiredReplicas`: what autoscaling wants, or what is set where nothing decides.

    A new leader shows the known number until it has observed for long enough to have one of its own.
    """
    if observation.advice is None or not observation.advice.settled:
        known = (observation.deployment.get("status") or {}).get("desiredReplicas")
        return observation.desired_replicas if known is None or not _decides(observation) else int(known)
    return observation.advice.wanted


def scaling_status(observation: Observation) -> dict[str, Any]:
    """`status.scaling`; empty with fixed replicas."""
    if not (observation.deployment.get("spec") or {}).get("autoscaling"):
        return {}
    status = observation.deployment.get("status") or {}
    decisions = list((status.get("scaling") or {}).get("decisions") or ())
    if observation.advice is not None and status.get("desiredReplicas") is not None:
        number = int(status["desiredReplicas"])
        for change in _new_changes(observation, observation.advice, decisions):
            if change.wanted != number:
                decisions.insert(0, _record(observation, change, number))
                number = change.wanted
    scaling: dict[str, Any] = {"decisions": decisions[:MAX_DECISIONS]} if decisions else {}
    return scaling | ({"asleepSince": asleep_since(observation)} if observation.asleep else {})


def asleep_since(observation: Observation) -> str:
    """Since when the status reports that the fleet sleeps."""
    known = ((observation.deployment.get("status") or {}).get("scaling") or {}).get("asleepSince")
    return str(known or time_of(observation.now_seconds))


def inputs_as_text(inputs: DecisionInputs) -> dict[str, str]:
    """Every number that is not its default, by its name in a status: `demandTokens: "90000"`."""
    return {
        to_camel(field.name): str(getattr(inputs, field.name))
        for field in fields(inputs)
        if getattr(inputs, field.name) != field.default
    }


def inputs_of_text(text: Mapping[str, str]) -> DecisionInputs:
    """The inputs of a recorded decision, from which `decide.choose` gives the decision again."""
    names = {to_camel(field.name): field.name for field in fields(DecisionInputs)}
    return DecisionInputs(**{names[name]: int(number) for name, number in text.items() if name in names})


def _decides(observation: Observation) -> bool:
    spec = observation.deployment.get("spec") or {}
    scaling = spec.get("autoscaling") or {}
    return bool(scaling) and scaling.get("mode") != "Paused" and not spec.get("suspend")


def _new_changes(
    observation: Observation, advice: Advice, decisions: Sequence[Mapping[str, Any]]
) -> Iterator[Change]:
    """Changes that no status has shown, oldest first; the last one leads to the number that is wanted now.

    Between two writes of a status a number can be wanted and withdrawn, as growth that an API server did not
    let happen.
    """
    shown_until = str(decisions[0]["time"]) if decisions else ""
    if advice.settled:
        yield from (change for change in advice.changes if time_of(change.decision.at_seconds) > shown_until)
    # Of another leader, which had its own changes and its own clock, the number alone is known.
    yield Change(wanted_replicas(observation), advice.decision, advice.reason)


def _record(observation: Observation, change: Change, before: int) -> dict[str, Any]:
    decision = change.decision
    record: dict[str, Any] = {
        "time": time_of(decision.at_seconds),
        "from": before,
        "to": change.wanted,
        "reason": change.reason.value,
        "message": explained(decision)[:_MAX_MESSAGE_LENGTH],
        "recommendations": dict(decision.recommendations),
        "inputs": inputs_as_text(decision.inputs),
    }
    if decision.limit:
        record["limitedBy"] = decision.limit.value
    victim = next((pod.name for pod in observation.pods if pod.uid == decision.victim), "")
    if victim:
        record["victim"] = victim
    return record
