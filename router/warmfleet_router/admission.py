"""Admission: from the door to a worker with room.

A request goes to a worker at once while one has room (`room`) and nobody waits. Otherwise it is held here,
where its place can be decided: between tenants by what they have got (`fair_queue`), within a tenant by
priority and arrival. Held requests are bounded (`queue_bounds`), and so is their wait: who would wait too
long is refused at the door, with the time after which it is worth trying again (`drain`).

`wake` is called whenever somebody may have room: an answer or a prefill ended, a load report came, the fleet
changed. While anybody is held a slow tick does the same, so that no lost call can strand a request.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from warmfleet_contracts.openai import RequestError
from warmfleet_router.door import Door
from warmfleet_router.drain import retry_after_seconds
from warmfleet_router.endpoints import EndpointView
from warmfleet_router.fleet_now import FleetNow
from warmfleet_router.leases import Leases
from warmfleet_router.load import UnreportedLoad
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.model_line import ModelLine, cost_of
from warmfleet_router.overload import overloaded_error, quota_error
from warmfleet_router.picker import NOTHING_PLANNED, Choice, Picker
from warmfleet_router.placement import Placement, place
from warmfleet_router.queue_bounds import NOTHING, AdmissionSettings, Amount, BoundedHold, Exceeded
from warmfleet_router.refusals import no_worker_error
from warmfleet_router.request_prompts import BYTES_PER_TOKEN, RequestPrompts
from warmfleet_router.room import Full, Need
from warmfleet_router.tenants import ANONYMOUS, Tenant
from warmfleet_router.turn import Grant, Turn

PUMP_SECONDS: Final = 0.002
"""The queue is looked at once per so long at most, whatever happens in between."""
TICK_SECONDS: Final = 0.5
SCANNED_REQUESTS: Final = 64
"""Requests looked at in one go, in their order."""
MAX_PASSED_OVER: Final = 16
"""Requests without a fitting worker that may be passed over in one go, each at the price of a choice."""
ALWAYS_HELD_REQUESTS: Final = 16
"""So many may wait however slow the fleet is."""


@dataclass(slots=True)
class _Scan:
    """What one look at a queue has found so far."""

    planned: dict[str, UnreportedLoad] = field(default_factory=dict)
    """What workers will be asked by those who wait for them, by uid."""
    done: set[str] = field(default_factory=set)
    """Tenants none of whose further requests can fit."""
    passed_over: int = 0

    @property
    def is_over(self) -> bool:
        return self.passed_over >= MAX_PASSED_OVER

    def pass_over(self, placement: Placement) -> None:
        """Somebody prefers to wait for a worker: those behind must reckon with it."""
        self.passed_over += 1
        before = self.planned.get(placement.plan_uid, UnreportedLoad())
        self.planned[placement.plan_uid] = before + placement.plan


class Admission:
    """The queue of one router. Not shared between threads."""

    def __init__(
        self,
        settings: AdmissionSettings,
        *,
        views: Callable[[str], Sequence[EndpointView]],
        picker: Picker,
        leases: Leases,
        metrics: RouterMetrics,
        waits_for_cheapest: bool = True,
    ) -> None:
        """`waits_for_cheapest`: whether the policy's order is one of cost, so that a wait can pay."""
        self._settings = settings
        self._views = views
        self._picker = picker
        self._leases = leases
        self._metrics = metrics
        self._waits_for_cheapest = waits_for_cheapest
        self.door = Door(settings.max_in_flight, metrics)
        self._held = BoundedHold(settings.max_held)
        self._lines: dict[str, ModelLine[Turn]] = {}
        self._scheduled = False
        self._pumped_at = float("-inf")
        self._tick: asyncio.TimerHandle | None = None

    # The door.

    def enter(self, tenant: Tenant, body_bytes: int) -> Turn:
        """Let a request in before its body is read; `body_bytes` is what it declares.

        Raises:
            RequestError: 429 over a bound, 503 while draining.
        """
        taken = self.door.enter(tenant, body_bytes)
        return Turn(tenant=tenant, on_end=self._end, started=self._leases.now(), taken=taken)

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
            line = self._lines[model] = ModelLine(model, self._leases.now)
        turn.line = line
        turn.sequences = sequences
        turn.priority = max(priority, turn.tenant.best_priority)
        turn.output_limit_tokens = output_limit_tokens
        turn.taken += self.door.take_body(turn.tenant, body_bytes - turn.taken.body_bytes)
        line.shares.seen(turn.tenant.name, turn.tenant.weight)
        if line.waiting:
            self._check_hold(turn, line, Amount(1, body_bytes, body_bytes // BYTES_PER_TOKEN))

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
        line = turn.line
        assert line is not None
        fleet = self._look(line.model)
        if not fleet.ready:
            raise no_worker_error(line.model)
        because = f"{line.waiting} wait already"
        if not line.waiting:
            placement = self._decide(turn, fleet, may_wait=self._waits_for_cheapest)
            if placement.choice is not None:
                self._give(turn, line, placement.choice)
                return
            because = placement.because
        self._check_hold(turn, line, self._size(turn))
        before = line.fair.before(turn.tenant.name, weight=turn.tenant.weight, priority=turn.priority)
        turn.held_behind, turn.held_because = before.requests, because
        self._hold(turn, line)
        turn.waiting = line.fair.add(
            turn.tenant.name,
            turn,
            weight=turn.tenant.weight,
            priority=turn.priority,
            cost=self._expected_cost(turn, turn.prompt_tokens),
        )

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
        self._return_seats(turn)
        turn.future = None
        fleet = self._look(line.model, turn.tried)
        if not fleet.ready:
            return None
        placement = self._decide(turn, fleet, may_wait=False)
        if placement.choice is not None:
            self._give(turn, line, placement.choice)
        else:
            self._hold(turn, line)
            line.retries.append(turn)
        return await self.granted(turn)

    def wake(self) -> None:
        """Somebody may have room. Costs nothing while nobody waits."""
        if self._scheduled or not self._held.total.requests:
            return
        self._scheduled = True
        loop = asyncio.get_running_loop()
        wait_seconds = self._pumped_at + PUMP_SECONDS - self._leases.now()
        if wait_seconds > 0:
            loop.call_later(wait_seconds, self._pump)
        else:
            loop.call_soon(self._pump)

    # What can be seen.

    @property
    def held(self) -> Amount:
        return self._held.total

    def held_by_model(self) -> dict[str, tuple[int, int]]:
        """Requests and prompt tokens that wait, by model; models for which somebody has waited before."""
        return {
            model: (line.waiting, sum(turn.held.tokens for turn in line.everyone()))
            for model, line in self._lines.items()
        }

    # Inside: holding.

    def _check_hold(self, turn: Turn, line: ModelLine[Turn], amount: Amount) -> None:
        tenant, now, bound = turn.tenant, self._leases.now(), self._settings.max_held
        before = line.fair.before(tenant.name, weight=tenant.weight, priority=turn.priority)
        wait_seconds = line.drain.seconds(before.cost, now)
        retry_after = retry_after_seconds(wait_seconds)
        match self._held.exceeded(tenant.name, amount, alone=tenant.name == ANONYMOUS.name):
            case Exceeded.WHOLE:
                self._metrics.on_overload("queue_full", turn.tenant.name)
                raise overloaded_error(
                    f"every replica of model {line.model!r} is busy and the queue is full: at most "
                    f"{bound.requests} requests, {bound.body_bytes} bytes, {bound.tokens} tokens",
                    retry_after,
                )
            case Exceeded.TENANT:
                self._metrics.on_overload("tenant_queue", turn.tenant.name)
                held = self._held.held(tenant.name)
                raise quota_error(
                    f"every replica of model {line.model!r} is busy and this key's tenant has its share of "
                    f"the queue: {held.requests} requests, {held.tokens} tokens",
                    retry_after,
                )
            case None:
                pass
        too_long = wait_seconds is not None and wait_seconds > self._settings.max_wait_seconds
        if too_long and before.requests >= ALWAYS_HELD_REQUESTS:
            self._metrics.on_overload("wait", turn.tenant.name)
            raise overloaded_error(
                f"every replica of model {line.model!r} is busy and {before.requests} requests stand before "
                f"this one, more than can be served in {self._settings.max_wait_seconds:g} seconds",
                retry_after,
            )

    def _hold(self, turn: Turn, line: ModelLine[Turn]) -> None:
        loop, now = asyncio.get_running_loop(), self._leases.now()
        if turn.prompts is not None:
            turn.prompts.compact()
        line.drain.filled(now)
        turn.future, turn.held_since, turn.held = loop.create_future(), now, self._size(turn)
        self._held.take(turn.tenant.name, turn.held)
        turn.timer = loop.call_later(self._settings.max_held_seconds, self._give_up, turn)
        if self._tick is None:
            self._tick = loop.call_later(TICK_SECONDS, self._on_tick)
        self.wake()

    def _release(self, turn: Turn) -> None:
        """Take `turn` out of the queue's books, however its wait ended."""
        line = turn.line
        assert line is not None
        self._held.give_back(turn.tenant.name, turn.held)
        turn.held = NOTHING
        turn.held_seconds += self._leases.now() - turn.held_since
        if turn.timer is not None:
            turn.timer.cancel()
        if turn in line.retries:
            line.retries.remove(turn)
        if turn.waiting is not None:
            line.fair.leave(turn.waiting)
            turn.waiting = None
        if not line.waiting:
            line.drain.emptied(self._leases.now())
        if turn.future is not None and not turn.future.done():
            turn.future.set_result(None)

    def _refuse(self, turn: Turn, error: RequestError) -> None:
        turn.refusal = error
        self._release(turn)

    def _give_up(self, turn: Turn) -> None:
        if not turn.is_held or turn.line is None:
            return
        self._metrics.on_overload("held_too_long", turn.tenant.name)
        seconds = turn.line.drain.seconds(turn.line.fair.cost, self._leases.now())
        self._refuse(
            turn,
            overloaded_error(
                f"no replica of model {turn.line.model!r} had room within "
                f"{self._settings.max_held_seconds:g} seconds",
                retry_after_seconds(seconds),
            ),
        )

    # Inside: serving.

    def _on_tick(self) -> None:
        self._tick = None
        if self._held.total.requests:
            self._tick = asyncio.get_running_loop().call_later(TICK_SECONDS, self._on_tick)
            self.wake()

    def _pump(self) -> None:
        self._scheduled = False
        self._pumped_at = self._leases.now()
        for line in list(self._lines.values()):
            if line.waiting:
                self._serve_line(line)

    def _serve_line(self, line: ModelLine[Turn]) -> None:
        fleet = self._look(line.model)
        if not fleet.ready:
            self._wait_for_a_worker(line)
            return
        line.unready_since = None
        waiting = [*line.retries, *(waiting.item for waiting in line.fair.head(SCANNED_REQUESTS))]
        scan = _Scan()
        for turn in waiting:
            if scan.is_over or not fleet.has_room(Need(1), self._settings.room):
                return
            choice = self._consider(turn, fleet, scan)
            if choice is not None:
                self._serve(turn, line, choice)
                fleet.charged(choice.candidate.uid)
        if line.waiting and len(waiting) >= SCANNED_REQUESTS:
            self.wake()

    def _consider(self, turn: Turn, fleet: FleetNow, scan: "_Scan") -> Choice | None:
        """A worker for `turn`; None if it is passed over this time."""
        if turn.tried.issuperset(fleet.ready):
            self._refuse(turn, no_worker_error(fleet.model))
            return None
        if turn.tenant.name in scan.done:
            return None
        rule = self._settings.room
        aged = self._leases.now() - turn.held_since >= self._settings.patience_seconds
        need = self._need(turn, fleet, may_use_headroom=self._is_within_share(turn, fleet))
        lacks = fleet.lacks(need, rule, turn.tried)
        if None in lacks:
            may_wait = self._waits_for_cheapest and not aged and not turn.tried
            placement = self._decide(turn, fleet, may_wait=may_wait, planned=scan.planned)
            if placement.choice is None:
                scan.pass_over(placement)
            return placement.choice
        scan.passed_over += 1
        if aged or (turn.sequences == 1 and Full.BLOCKS not in lacks):
            scan.done.add(turn.tenant.name)
        if aged and not fleet.has_room(self._need(turn, fleet, may_use_headroom=True), rule, turn.tried):
            # It fits nowhere and was passed over for long enough: what becomes free is kept for it.
            scan.passed_over = MAX_PASSED_OVER
        return None

    def _wait_for_a_worker(self, line: ModelLine[Turn]) -> None:
        now = self._leases.now()
        if line.unready_since is None:
            line.unready_since = now
        if now - line.unready_since >= self._settings.no_worker_seconds:
            for turn in list(line.everyone()):
                self._refuse(turn, no_worker_error(line.model))

    def _serve(self, turn: Turn, line: ModelLine[Turn], choice: Choice) -> None:
        now = self._leases.now()
        if turn.waiting is not None:
            line.drain.drained(turn.waiting.cost, now)
            turn.charged_cost = self._expected_cost(turn, choice.candidate.uncached_tokens)
            line.fair.serve(turn.waiting, turn.charged_cost)
            turn.waiting = None
        self._give(turn, line, choice)
        self._release(turn)
        self._metrics.on_held(line.model, turn.held_seconds)

    def _give(self, turn: Turn, line: ModelLine[Turn], choice: Choice) -> None:
        name = turn.tenant.name
        if turn.charged_cost is None:
            turn.charged_cost = self._expected_cost(turn, choice.candidate.uncached_tokens)
            line.fair.serve_at_once(name, weight=turn.tenant.weight, cost=turn.charged_cost)
        turn.uncached_tokens = choice.candidate.uncached_tokens
        turn.tried.add(choice.candidate.uid)
        turn.lease = self._leases.lease(choice.charge).open()
        turn.seats = turn.sequences
        line.shares.take(name, turn.seats)
        turn.grant = Grant(choice, turn.lease)

    def _return_seats(self, turn: Turn) -> None:
        if turn.lease is not None:
            turn.lease.close()
        if turn.line is not None and turn.seats:
            turn.line.shares.give_back(turn.tenant.name, turn.seats)
            turn.seats = 0

    def _end(self, turn: Turn) -> None:
        """The request is over, wherever it stood."""
        if turn.held != NOTHING:
            self._release(turn)
        self._return_seats(turn)
        self.door.give_back(turn.tenant, turn.taken)
        line, now = turn.line, self._leases.now()
        if line is None or turn.charged_cost is None:
            return
        true_cost = cost_of(turn.uncached_tokens, turn.output_tokens)
        line.fair.correct(turn.tenant.name, true_cost - turn.charged_cost)
        if turn.completed:
            line.observe_output(turn.output_tokens, turn.sequences)
            self.door.completed(now - turn.started)
        self.wake()

    # Inside: judging.

    def _look(self, model: str, tried: Collection[str] = ()) -> FleetNow:
        return FleetNow(model, self._views(model), self._picker, tried)

    def _decide(
        self,
        turn: Turn,
        fleet: FleetNow,
        *,
        may_wait: bool,
        planned: Mapping[str, UnreportedLoad] = NOTHING_PLANNED,
    ) -> Placement:
        assert turn.prompts is not None
        ranked = self._picker.rank(fleet.views, turn.prompts, excluded=turn.tried, planned=planned)
        if ranked is None:
            return Placement(None, "no worker that was not tried is ready")
        return place(
            ranked,
            fleet.loads,
            self._settings.room,
            may_use_headroom=self._is_within_share(turn, fleet),
            may_wait_for_cheapest=may_wait,
        )

    def _is_within_share(self, turn: Turn, fleet: FleetNow) -> bool:
        assert turn.line is not None
        tenant = turn.tenant
        return turn.line.shares.is_within(tenant.name, tenant.weight, turn.sequences, fleet.seats)

    def _need(self, turn: Turn, fleet: FleetNow, *, may_use_headroom: bool) -> Need:
        return Need(turn.sequences, -(-turn.prompt_tokens // fleet.block_size_tokens), may_use_headroom)

    def _size(self, turn: Turn) -> Amount:
        return Amount(1, turn.taken.body_bytes, turn.prompt_tokens)

    def _expected_cost(self, turn: Turn, uncached_tokens: int) -> float:
        assert turn.line is not None
        expected = turn.line.expected_output_tokens(turn.output_limit_tokens, turn.sequences)
        return cost_of(uncached_tokens, expected)
