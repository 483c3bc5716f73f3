"""Decides at every tick how many replicas each fleet with autoscaling needs, and keeps the advice."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from warmfleet_contracts.cache.fleet_totals import ReplicaTotals
from warmfleet_operator.objects.kinds import DEPLOYMENT
from warmfleet_operator.scaling.advice import Advice
from warmfleet_operator.scaling.decider import FleetDecider
from warmfleet_operator.scaling.decision import ScalingDecision
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_operator.scaling.signals import Reading, newest_reports
from warmfleet_operator.status.replica_state import DeploymentScale, deployment_scale, replica_state
from warmfleet_operator.watch.entry import Key
from warmfleet_operator.watch.store import Store

log = structlog.get_logger("warmfleet.operator")


class TotalsSource(Protocol):
    """The routers' last answers."""

    @property
    def routers(self) -> int:
        """Ready routers, those that do not answer included."""

    def readings(self) -> Sequence[Reading]:
        """The last answer of each router, while it is recent."""


@dataclass(slots=True)
class _Followed:
    """One fleet with autoscaling."""

    decider: FleetDecider
    version: tuple[str, int] | None = None
    """Of the Deployment from which `scale` was read."""
    scale: DeploymentScale | None = None
    decided_for: tuple[str, int] | None = None
    """`spec_version` of the Deployment at the last decision."""


class ScalingAdvisor:
    """Ticks for all fleets that are followed; asks no router and writes nothing.

    advisor.follow(key, policy, names)     # at every reconciliation
    advisor.tick(time.time())              # every few seconds
    advisor.tick(time.time(), only_asleep=True)  # in between
    advisor.advice(key)
    advisor.decision(key, deployment_scale(workers))  # to carry it out
    """

    def __init__(
        self,
        *,
        store: Store,
        totals: TotalsSource,
        no_room_seconds: float,
        on_change: Callable[[Key], None],
    ) -> None:
        """`on_change` receives each deployment whose advice differs in what its status shows."""
        self._store = store
        self._totals = totals
        self._no_room_seconds = no_room_seconds
        self._on_change = on_change
        self._followed: dict[Key, _Followed] = {}

    def follow(
        self, key: Key, policy: AutoscalingPolicy, names: Sequence[str], *, acts: bool = False
    ) -> None:
        """Decide for `key` by this policy; what was learnt stays when only the policy changes.

        Args:
            key: the ModelDeployment.
            policy: its policy.
            names: by which requests ask for it.
            acts: whether decisions are carried out: it is reported until its Deployment has the number.
        """
        known = self._followed.get(key)
        if known is None:
            self._followed[key] = _Followed(FleetDecider(policy, tuple(names), acts))
        else:
            decider = known.decider
            decider.policy, decider.names, decider.acts = policy, tuple(names), acts

    def forget(self, key: Key) -> None:
        """Decide no more for `key`."""
        self._followed.pop(key, None)

    def forget_all(self) -> None:
        """Decide for no fleet: another replica of the operator leads."""
        self._followed.clear()

    @property
    def follows_any(self) -> bool:
        """Whether there is anything to decide."""
        return bool(self._followed)

    @property
    def any_asleep(self) -> bool:
        """Whether a fleet whose decisions are carried out has no replica: a request is to wake it soon."""
        return any(_is_asleep(fleet) for fleet in self._followed.values())

    def advice(self, key: Key) -> Advice | None:
        """The advice of the last tick; None before the first."""
        known = self._followed.get(key)
        return known.decider.advice if known is not None else None

    def decision(self, key: Key, scale: DeploymentScale) -> ScalingDecision | None:
        """What is to be carried out for a Deployment of this `scale`; None if nothing is.

        A decision is for the spec that it was made from: another client may have set the same number again
        that the fleet had then, and the next tick decides from that.
        """
        known, advice = self._followed.get(key), self.advice(key)
        if known is None or advice is None or not advice.settled or known.decided_for != scale.spec_version:
            return None
        return advice.latest

    def all_advice(self) -> Mapping[Key, Advice]:
        """Every advice, for metrics."""
        advice = {key: known.decider.advice for key, known in self._followed.items()}
        return {key: item for key, item in advice.items() if item is not None}

    def tick(self, now_seconds: float, *, only_asleep: bool = False) -> None:
        """Decide for every fleet. Does not raise: a fleet for which that fails keeps its last advice.

        Args:
            now_seconds: on a clock that rises.
            only_asleep: decide for fleets that sleep alone.
        """
        readings = self._totals.readings()
        reports = newest_reports(readings)
        for key, fleet in self._followed.items():
            if only_asleep and not _is_asleep(fleet):
                continue
            try:
                self._decide(key, fleet, readings, reports, now_seconds)
            except Exception:
                log.exception("no decision about replicas, the next tick tries again", deployment=str(key))

    def _decide(
        self,
        key: Key,
        fleet: _Followed,
        readings: Sequence[Reading],
        reports: Mapping[str, ReplicaTotals],
        now_seconds: float,
    ) -> None:
        scale = self._scale(key, fleet)
        if scale is None:
            return  # its Deployment is not there yet
        state, ready = replica_state(scale, self._store.pods(key), now_seconds, self._no_room_seconds)
        decider = fleet.decider
        before = decider.advice
        advice = decider.tick(
            readings, reports, state, ready, routers=self._totals.routers, now_seconds=now_seconds
        )
        fleet.decided_for = scale.spec_version
        if decider.due(scale.replicas) is not None or _shown(before) != _shown(advice):
            self._on_change(key)

    def _scale(self, key: Key, fleet: _Followed) -> DeploymentScale | None:
        version = self._store.version(DEPLOYMENT, key)
        if version != fleet.version:
            workers = self._store.child(DEPLOYMENT, key)
            fleet.scale = None if workers is None else deployment_scale(workers)
            fleet.version = version
        return fleet.scale


def _is_asleep(fleet: _Followed) -> bool:
    """By the last tick."""
    return fleet.decider.acts and fleet.scale is not None and fleet.scale.replicas == 0


def _shown(advice: Advice | None) -> tuple[int, str, bool] | None:
    """What a status shows of an advice."""
    if advice is None or not advice.settled:
        return None
    return advice.wanted, advice.missing, bool(advice.unschedulable)
