"""The production router without HTTP: admission, picker, leases and prefix index, joined as in its `app`.

`SimulatedRouter.answer` does what the proxy does around one answer. Retries, results of failures and the
comparison of a worker's headers are left out: nothing fails here.
"""

import asyncio
from array import array
from collections.abc import Mapping
from typing import Final

from warmfleet_contracts.cache.fleet_totals import FleetTotals
from warmfleet_contracts.cache.kv_events import Frame
from warmfleet_contracts.openai import RequestError
from warmfleet_router.admission.admission import Admission
from warmfleet_router.admission.dispatch import Dispatch
from warmfleet_router.admission.in_flight_limits import InFlightLimits, InFlightTicket
from warmfleet_router.admission.queue_bounds import AdmissionSettings
from warmfleet_router.admission.queued_request import QueuedRequest
from warmfleet_router.api.fleet_totals import model_totals, replica_totals
from warmfleet_router.economics.ghost_list import GhostList
from warmfleet_router.economics.misses import missed_tokens
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.routing.block_hash_memory import BlockHashMemory
from warmfleet_router.routing.leases import Leases
from warmfleet_router.routing.miss_causes import MissCauses
from warmfleet_router.routing.picker import Picker
from warmfleet_router.routing.prompt_hashes import BYTES_PER_TOKEN, RequestPrompts
from warmfleet_router.tenants import ANONYMOUS
from warmfleet_router.workers.breakers import Breakers
from warmfleet_router.workers.index_sweeper import IndexSweeper
from warmfleet_router.workers.prefix_index import PrefixIndex
from warmfleet_simulator.errors import PlacementError
from warmfleet_simulator.router.fleet import MODEL, TOKENIZER, SimulatedFleet, follow_fleet
from warmfleet_simulator.router.network import Network
from warmfleet_simulator.router.outcome import Outcome
from warmfleet_simulator.router.placed_picker import PlacedPicker
from warmfleet_simulator.traces.request import TraceRequest

LIFE_ID: Final = "simulated-router"


class SimulatedRouter:
    """Answers the requests of a trace; needs a running event loop.

    await router.start()
    outcome = await router.answer(request)
    await router.stop()
    """

    def __init__(
        self,
        fleet: SimulatedFleet,
        network: Network,
        *,
        policy: str,
        admission: AdmissionSettings,
        context_tokens: int,
        placements: Mapping[bytes, str] | None = None,
    ) -> None:
        """`policy` is one of the router's; `admission` bounds what waits in it.

        With `placements` a prompt goes to the replica that they have for its `prompt_key`; `answer` raises
        PlacementError for one that they do not have.

        A prompt of `context_tokens` or more leaves no replica room for an answer and is refused.
        """
        now = asyncio.get_running_loop().time
        capacity_changed = asyncio.Event()
        metrics = RouterMetrics()
        self._counts = metrics.models.of(MODEL)
        self._models = metrics.models
        self._fleet = fleet
        self._network = network
        self._now = now
        self._context_tokens = context_tokens
        self._leases = Leases(LIFE_ID, now, on_capacity=capacity_changed.set)
        self._breakers = Breakers(now=now, draw=lambda: 0.0)
        self._hash_memory = BlockHashMemory()
        self._ghosts = GhostList()
        self._limits = InFlightLimits(admission.max_in_flight, now=now, metrics=metrics)
        dropped = asyncio.Event()
        self._index = PrefixIndex(on_dropped=dropped.set)
        self._sweeper = IndexSweeper(self._index, dropped)
        self._workers = follow_fleet(
            fleet,
            self._index,
            on_frame=self._frame_arrived,
            on_change=capacity_changed.set,
            on_gone=self._forget,
        )
        self._miss_causes = MissCauses(self._index, self._ghosts, self._workers.worker)
        self._placements = placements
        if placements is None:
            picker = Picker(self._index, self._leases, policy, self._breakers)
        else:
            picker = PlacedPicker(self._index, self._leases, policy, self._breakers, placements)
        self._admission = Admission(
            admission,
            limits=self._limits,
            workers=self._workers.workers,
            picker=picker,
            leases=self._leases,
            breakers=self._breakers,
            capacity_changed=capacity_changed,
            metrics=metrics,
            touched=self._index.touched,
        )

    async def start(self) -> None:
        """Begin to follow the replicas; returns at once."""
        await self._sweeper.start()
        await self._workers.start()
        await self._admission.start()

    async def stop(self) -> None:
        """Close all event streams."""
        await self._admission.stop()
        await self._workers.stop()
        await self._sweeper.stop()

    def totals(self) -> FleetTotals:
        """What the operator reads."""
        return FleetTotals(
            router=LIFE_ID,
            uptime_seconds=self._now(),
            models=model_totals(self._admission.waits(), self._models.all()),
            replicas=replica_totals(self._workers.workers(), self._index.unique_value),
        )

    def count_gap(self, seconds: float, count: int) -> None:
        """Count the time between two tokens of an answer, `count` times."""
        self._counts.inter_token.add(seconds * 1e3, count)

    async def answer(self, request: TraceRequest) -> Outcome:
        """Have a request answered, or refused as the production router refuses it."""
        arrived_at = self._now()
        if request.prompt_tokens >= self._context_tokens:
            return _refused(request, "context_length_exceeded")
        try:
            with self._limits.enter(ANONYMOUS) as ticket:
                return await self._admitted(request, ticket, arrived_at)
        except RequestError as error:
            return _refused(request, error.code or str(error.status))

    async def _admitted(self, request: TraceRequest, ticket: InFlightTicket, arrived_at: float) -> Outcome:
        prompt_tokens = request.prompt_tokens
        body_bytes = prompt_tokens * BYTES_PER_TOKEN
        ticket.receive(body_bytes)
        answer_tokens = self._admission.reserve(
            ticket, MODEL, priority=0, sequences=1, output_limit_tokens=request.output_tokens
        )
        token_ids = request.token_ids()
        prompts = RequestPrompts(
            encoded={TOKENIZER: [token_ids]},
            salt=b"",
            hash_memory=self._hash_memory,
            body_bytes=body_bytes,
            head=b"",
        )
        # No task awaits the picker: what it raised would leave the request waiting for ever.
        if self._placements is not None and prompts.whole_key not in self._placements:
            raise PlacementError(f"placements have no replica for a prompt of {prompt_tokens:,} tokens")
        ticket.add_tokens(prompt_tokens + answer_tokens, prompts.size_bytes)
        queued = QueuedRequest(
            model=MODEL,
            tenant=ANONYMOUS,
            prompts=prompts,
            prompt_tokens=prompt_tokens,
            body_bytes=body_bytes,
            sequences=1,
            priority=0,
            output_limit_tokens=request.output_tokens,
            arrived_at=arrived_at,
            body_read_at=arrived_at,
        )
        dispatch = await self._admission.submit(queued, on_queued=lambda _before, _because: None)
        try:
            return await self._exchange(request, token_ids, dispatch, arrived_at)
        finally:
            dispatch.release()

    async def _exchange(
        self, request: TraceRequest, token_ids: "array[int]", dispatch: Dispatch, arrived_at: float
    ) -> Outcome:
        """What the proxy does around one answer that streams and does not fail."""
        picked = dispatch.picked
        uid = picked.endpoint.uid
        causes = self._miss_causes.of(picked, dispatch.request.prompts)
        remembered = self._fleet.remembered(uid)
        if remembered is not None and picked.prediction.prompts:
            remembered.dispatched(picked.prediction.prompts[0].hashes)
        async with dispatch.lease as lease:
            with dispatch.trial as trial:
                await self._network.deliver()
                answer = self._fleet.replicas[uid].submit(
                    token_ids,
                    output_tokens=request.output_tokens,
                    answer_token=request.answer_id,
                    router_id=LIFE_ID,
                    dispatch=lease.dispatch,
                )
                cached_tokens = await answer.admitted
                lease.seated()
                misses = missed_tokens(
                    causes,
                    first_cached_tokens=cached_tokens,
                    prompt_tokens=request.prompt_tokens,
                    cached_tokens=cached_tokens,
                )
                self._counts.answered(request.prompt_tokens, cached_tokens, misses)
                await answer.first_token
                await self._network.deliver()
                lease.first_byte()
                first_token_seconds = self._now() - arrived_at
                self._counts.first_token.add(first_token_seconds * 1e3)
                output_tokens = await answer.ended
                await self._network.deliver()
                trial.completed()
        dispatch.usage.output_tokens = output_tokens
        dispatch.usage.is_completed = True
        outcome = Outcome(
            arrival_seconds=request.arrival_seconds,
            prompt_tokens=request.prompt_tokens,
            cached_tokens=cached_tokens,
            output_tokens=output_tokens,
            first_token_seconds=first_token_seconds,
            answer_seconds=self._now() - arrived_at,
            misses=misses,
        )
        if output_tokens > 1:
            self._counts.mean_inter_token.add(outcome.seconds_per_token * 1e3)
        return outcome

    def _frame_arrived(self, uid: str, frame: Frame) -> None:
        self._leases.frame_arrived(uid, frame)
        self._ghosts.frame_arrived(uid, frame)

    def _forget(self, uid: str) -> None:
        """A replica has gone."""
        self._leases.forget(uid)
        self._breakers.forget(uid)
        self._ghosts.forget(uid)


def _refused(request: TraceRequest, code: str) -> Outcome:
    return Outcome(request.arrival_seconds, request.prompt_tokens, refusal=code)
