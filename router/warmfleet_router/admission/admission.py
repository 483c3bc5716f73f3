"""Admission: from the door to a worker with room.

A request goes to a worker at once while one has room (`room`) and nobody waits. Otherwise it is held here
(`hold`), where its place can be decided: between tenants by what they have got (`fair_queue`), within a
tenant by priority and arrival. The `pump` gives workers to those who wait.
"""

from collections.abc import Callable, Sequence

from warmfleet_router.admission.assignment import Grants
from warmfleet_router.admission.dispatcher import Pump
from warmfleet_router.admission.in_flight_limits import Door
from warmfleet_router.admission.model_queue import ModelQueue, cost_of
from warmfleet_router.admission.queue_bounds import NOTHING, AdmissionSettings, Amount
from warmfleet_router.admission.queued_request import Grant, Turn
from warmfleet_router.admission.wait_queue import Hold
from warmfleet_router.error_responses import no_worker_error
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.routing.leases import Leases
from warmfleet_router.routing.picker import Picker
from warmfleet_router.routing.prompt_hashes import BYTES_PER_TOKEN, RequestPrompts
from warmfleet_router.tenants import Tenant
from warmfleet_router.workers.fleet import WorkerStatus


class Admission:
    """The queue of one router. Not shared between threads."""

    def __init__(
        self,
        settings: AdmissionSettings,
        *,
        views: Callable[[str], Sequence[WorkerStatus]],
        picker: Picker,
        leases: Leases,
        metrics: RouterMetrics,
    ) -> None:
        self.door = Door(settings.max_in_flight, metrics)
        self._now = leases.now
        self._lines: dict[str, ModelQueue[Turn]] = {}
        self._hold = Hold(settings, now=leases.now, metrics=metrics)
        self._grants = Grants(settings.room, views=views, picker=picker, leases=leases)
        self._pump = Pump(settings, self._lines, self._hold, self._grants, now=leases.now, metrics=metrics)
        self.wake = self._pump.wake
        """To be called whenever somebody may have room. Costs nothing while nobody waits."""

    # The door.

    def enter(self, tenant: Tenant, body_bytes: int) -> Turn:
        """Let a request in before its body is read; `body_bytes` is what it declares.

        Raises:
            RequestError: 429 over a bound.
        """
        taken = self.door.enter(tenant, body_bytes)
        return Turn(tenant=tenant, on_end=self._end, started=self._now(), taken=taken)

    def ask(
        self,
        turn: Turn,
        model: str,
        *,
        body_bytes: int,
        sequences: int,
        priority: int,
        output_limit_tokens: int | None,
    ) -> None:
        """The body is here. Refuses before its prompt is encoded what would have to wait and may not.

        `model` is one that the fleet serves.

        Raises:
            RequestError: 429.
        """
        line = self._lines.get(model)
        if line is None:
            line = self._lines[model] = ModelQueue(model, self._now)
        turn.line = line
        turn.sequences = sequences
        turn.priority = max(priority, turn.tenant.best_priority)
        turn.output_limit_tokens = output_limit_tokens
        turn.taken += self.door.take_body(turn.tenant, body_bytes - turn.taken.body_bytes)
        line.shares.seen(turn.tenant.name, turn.tenant.weight)
        if line.waiting:
            self._hold.check(turn, line, Amount(1, body_bytes, body_bytes // BYTES_PER_TOKEN))

    def measure(self, turn: Turn, prompts: RequestPrompts) -> None:
        """The prompt is encoded: check the tenant's tokens in flight.

        Raises:
            RequestError: 429.
        """
        assert turn.line is not None
        turn.prompts = prompts
        turn.prompt_tokens = prompts.token_count or prompts.estimated_tokens
        expected = turn.line.expected_output_tokens(turn.output_limit_tokens, turn.sequences)
        turn.taken += self.door.take_tokens(turn.tenant, turn.prompt_tokens + round(expected))

    def place(self, turn: Turn) -> None:
        """Give the request a worker (`turn.grant`), or hold it.

        Raises:
            RequestError: 503 if no worker is ready, 429 if it may not be held.
        """
        line, tenant = turn.line, turn.tenant
        assert line is not None
        fleet = self._grants.look(line.model)
        if not fleet.ready:
            raise no_worker_error(line.model)
        because = f"{line.waiting} wait already"
        if not line.waiting:
            placement = self._grants.decide(turn, fleet, may_wait=True, is_next=True)
            if placement.choice is not None:
                self._grants.give(turn, placement.choice)
                return
            because = placement.because
        self._hold.check(turn, line, turn.size)
        before = line.fair.before(tenant.name, weight=tenant.weight, priority=turn.priority)
        turn.held_behind, turn.held_because = before.requests, because
        self._hold.take(turn, line)
        turn.waiting = line.fair.add(
            tenant.name,
            turn,
            weight=tenant.weight,
            priority=turn.priority,
            cost=self._grants.expected_cost(turn, turn.prompt_tokens),
        )
        self.wake()

    # The wait.

    async def granted(self, turn: Turn) -> Grant:
        """The worker that the request got, after as long as it takes.

        Raises:
            RequestError: it waited too long (429), or no worker is left (503).
        """
        if turn.grant is None:
            assert turn.future is not None
            await turn.future
        if turn.grant is None:
            assert turn.refusal is not None
            raise turn.refusal
        grant, turn.grant = turn.grant, None
        return grant

    async def again(self, turn: Turn) -> Grant | None:
        """Another worker than those that were granted so far: at once, or before all that wait.

        None if there is none left.

        Raises:
            RequestError: as for `granted`.
        """
        line = turn.line
        assert line is not None
        self._grants.take_back(turn)
        turn.future = None
        fleet = self._grants.look(line.model, turn.tried)
        if not fleet.ready:
            return None
        placement = self._grants.decide(turn, fleet, may_wait=False, is_next=False)
        if placement.choice is not None:
            self._grants.give(turn, placement.choice)
        else:
            self._hold.take(turn, line)
            line.retries.append(turn)
            self.wake()
        return await self.granted(turn)

    # What can be seen.

    @property
    def held(self) -> Amount:
        return self._hold.total

    def held_by_model(self) -> dict[str, tuple[int, int]]:
        """Requests and prompt tokens that wait, by model; models for which somebody has waited before."""
        return {
            model: (line.waiting, sum(turn.held.tokens for turn in line.everyone()))
            for model, line in self._lines.items()
        }

    # The end.

    def _end(self, turn: Turn) -> None:
        """The request is over, wherever it stood."""
        line = turn.line
        if line is not None and turn.held != NOTHING:
            self._hold.release(turn, line)
        self._grants.take_back(turn)
        self.door.give_back(turn.tenant, turn.taken)
        if line is None or turn.charged_cost is None:
            return
        true_cost = cost_of(turn.uncached_tokens, turn.output_tokens)
        line.fair.correct(turn.tenant.name, true_cost - turn.charged_cost)
        if turn.completed:
            line.observe_output(turn.output_tokens, turn.sequences)
            self.door.completed(self._now() - turn.started)
        self.wake()
