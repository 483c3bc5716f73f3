"""One fleet's decisions, tick after tick: signals, policy and advice in order, and what they remember."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from warmfleet_contracts.cache.fleet_totals import ReplicaTotals
from warmfleet_operator.scaling.advice import Advice, AdviceMemory, advised
from warmfleet_operator.scaling.decide import decide
from warmfleet_operator.scaling.decision import ReplicaState, ScalingDecision
from warmfleet_operator.scaling.memory import ScalingMemory
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_operator.scaling.signals import Reading, SignalHistory, merged


@dataclass(slots=True)
class FleetDecider:
    """Decides for one fleet; its caller starts and ends replicas: the operator, a simulation.

    advice = decider.tick(readings, newest_reports(readings), state, ready_uids, routers=1, now_seconds=now)
    decider.due(state.spec_replicas)
    """

    policy: AutoscalingPolicy
    """A new one takes effect at the next tick; what was learnt stays."""
    names: tuple[str, ...]
    """By which requests ask for the model."""
    acts: bool
    """Whether decisions are carried out."""
    advice: Advice | None = None
    """Of the last tick."""
    _memory: ScalingMemory = field(default_factory=ScalingMemory)
    _advice_memory: AdviceMemory = field(default_factory=AdviceMemory)
    _history: SignalHistory = field(default_factory=SignalHistory)

    def tick(
        self,
        readings: Sequence[Reading],
        reports: Mapping[str, ReplicaTotals],
        state: ReplicaState,
        ready_uids: Sequence[str],
        *,
        routers: int,
        now_seconds: float,
    ) -> Advice:
        """The advice now.

        Args:
            readings: the last answer of every router that answers.
            reports: `newest_reports(readings)`, made once for all fleets.
            state: of the replicas.
            ready_uids: those that are ready: all of them must have a usable report.
            routers: how many routers are ready.
            now_seconds: on any clock that rises.
        """
        self._history, signals = merged(
            readings,
            reports,
            self._history,
            names=self.names,
            ready_uids=ready_uids,
            routers=routers,
            now_seconds=now_seconds,
            with_latencies=self.policy.has_latency_goal,
        )
        self._memory, decision = decide(self.policy, self._memory, signals, state, now_seconds)
        self._advice_memory, self.advice = advised(
            self.policy,
            self._advice_memory,
            before=self.advice,
            decision=decision,
            signals=signals,
            state=state,
            acts=self.acts,
        )
        return self.advice

    def due(self, replicas: int) -> ScalingDecision | None:
        """The decision to be carried out where `replicas` are set; None if there is none."""
        advice = self.advice
        if advice is None or not self.acts or not advice.settled or advice.latest.to_replicas == replicas:
            return None
        return advice.latest
