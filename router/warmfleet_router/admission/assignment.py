"""Grants: which worker a request gets, what that is charged to, and how it is given back."""

from collections.abc import Callable, Collection, Mapping, Sequence

from warmfleet_router.admission.model_queue import cost_of
from warmfleet_router.admission.placement import Placement, place
from warmfleet_router.admission.queue_bypass import may_bypass
from warmfleet_router.admission.queued_request import Grant, Turn
from warmfleet_router.routing.capacity import CapacityLimits, Need
from warmfleet_router.routing.fleet_snapshot import FleetSnapshot
from warmfleet_router.routing.leases import Leases
from warmfleet_router.routing.open_dispatches import UnreportedLoad
from warmfleet_router.routing.picker import NOTHING_PLANNED, PickedWorker, Picker
from warmfleet_router.routing.policies import PRICED
from warmfleet_router.workers.fleet import WorkerStatus


class Grants:
    """Decides for one request at a time; `give` charges worker, share and fair account."""

    def __init__(
        self,
        rule: CapacityLimits,
        *,
        views: Callable[[str], Sequence[WorkerStatus]],
        picker: Picker,
        leases: Leases,
    ) -> None:
        self.rule = rule
        self._views = views
        self._picker = picker
        self._leases = leases

    def look(self, model: str, tried: Collection[str] = ()) -> FleetSnapshot:
        """The workers of `model` that can be given requests now."""
        return self._picker.snapshot(self._views(model), tried)

    def decide(
        self,
        turn: Turn,
        fleet: FleetSnapshot,
        *,
        may_wait: bool,
        is_next: bool,
        planned: Mapping[str, UnreportedLoad] = NOTHING_PLANNED,
    ) -> Placement:
        """A worker of `fleet`, or why it is better to wait; changes nothing.

        `may_wait`: for the cheapest worker while another has room. `is_next`: in the fair order nobody
        stands before it, so that it may overtake.
        """
        assert turn.prompts is not None
        ranked = self._picker.rank(fleet, turn.prompts, tried=turn.tried, planned=planned)
        if ranked is None:
            return Placement(None, "no worker that was not tried is ready")
        return place(
            ranked,
            fleet.loads,
            self.rule,
            may_use_headroom=self._is_within_share(turn, fleet),
            # Only where the order is one of cost can a wait pay.
            may_wait_for_cheapest=may_wait and fleet.policy in PRICED,
            may_bypass=lambda uid: is_next and self.may_bypass(turn, fleet, uid),
        )

    def may_bypass(self, turn: Turn, fleet: FleetSnapshot, uid: str) -> bool:
        """Whether the request, if it is next, passes what this router has sent to a worker."""
        line = turn.line
        assert line is not None
        return may_bypass(
            turn.tenant.name,
            turn.priority,
            line.prefills.on(uid),
            counter=line.fair.counter,
            is_within_window=lambda tokens: fleet.is_within_window(uid, tokens, self.rule),
        )

    def need(self, turn: Turn, fleet: FleetSnapshot, *, may_use_headroom: bool | None = None) -> Need:
        """What the request asks of a worker's room; headroom by the tenant's share unless it is given."""
        if may_use_headroom is None:
            may_use_headroom = self._is_within_share(turn, fleet)
        return Need(turn.sequences, -(-turn.prompt_tokens // fleet.block_size_tokens), may_use_headroom)

    def expected_cost(self, turn: Turn, uncached_tokens: int) -> float:
        """What the request will probably cost its tenant."""
        assert turn.line is not None
        expected = turn.line.expected_output_tokens(turn.output_limit_tokens, turn.sequences)
        return cost_of(uncached_tokens, expected)

    def give(self, turn: Turn, choice: PickedWorker) -> None:
        """Charge the chosen worker; `turn.grant` is the proof. A retry is not charged to the tenant again."""
        line, name = turn.line, turn.tenant.name
        assert line is not None
        turn.uncached_tokens = choice.candidate.uncached_tokens
        if turn.charged_cost is None:
            turn.charged_cost = self.expected_cost(turn, turn.uncached_tokens)
            if turn.waiting is None:
                line.fair.serve_at_once(name, weight=turn.tenant.weight, cost=turn.charged_cost)
            else:
                line.drain.drained(turn.waiting.cost, self._leases.now())
                line.fair.serve(turn.waiting, turn.charged_cost)
                turn.waiting = None
        turn.tried.add(choice.candidate.uid)
        turn.lease = self._leases.lease(choice.charge).open()
        turn.bypasses = choice.bypasses
        line.prefills.add(turn.lease, name, turn.sent_priority)
        turn.seats = turn.sequences
        line.shares.take(name, turn.seats)
        turn.grant = Grant(choice, turn.lease)

    def take_back(self, turn: Turn) -> None:
        """The worker is not (or no longer) needed. Idempotent."""
        if turn.lease is not None:
            turn.lease.close()
        if turn.line is not None and turn.seats:
            turn.line.shares.give_back(turn.tenant.name, turn.seats)
            turn.seats = 0

    def _is_within_share(self, turn: Turn, fleet: FleetSnapshot) -> bool:
        assert turn.line is not None
        tenant = turn.tenant
        return turn.line.shares.is_within(tenant.name, tenant.weight, turn.sequences, fleet.seats)
