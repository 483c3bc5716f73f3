"""Requests of sleeping models: how many are held, in which order they go on, and how fast."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_contracts.openai import RequestError
from warmfleet_router.admission.queue_bounds import NOTHING, Amount
from warmfleet_router.admission.waking_queue import RELEASED_REQUESTS, REPORTED_SECONDS, WakingQueue
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.tenants import ANONYMOUS, Tenant
from warmfleet_router.workers.encoders import ENCODING_THREADS
from warmfleet_router.workers.fleet import WorkerStatus

A, B = Tenant(name="a"), Tenant(name="b")
ROOMY = Amount(1000, 2**30, 2**30)
READY = cast(WorkerStatus, SimpleNamespace(ready=True, hello=SimpleNamespace(tokenizer_digest="d")))
LOADING = cast(WorkerStatus, SimpleNamespace(ready=False, hello=None))


@dataclass
class Model:
    """One model that sleeps until a test gives it workers, and the queue behind `WakingQueue`."""

    bound: Amount = ROOMY
    hold_seconds: float | None = 60.0
    workers: list[WorkerStatus] = field(default_factory=list)
    tokenizer_known: bool = True
    queued: int = 0
    now: float = 100.0
    order: list[str] = field(default_factory=list)
    """Tenants of the requests that went on."""
    encoding: int = 0
    most_encoding: int = 0
    tasks: list["asyncio.Task[str]"] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.metrics = RouterMetrics()
        self.queue = WakingQueue(
            self.bound,
            hold_seconds=lambda model: self.hold_seconds if model == "m" else None,
            workers=lambda _model: self.workers,
            is_settled=lambda _digest: self.tokenizer_known,
            queued=lambda _model: self.queued,
            now=lambda: self.now,
            metrics=self.metrics,
        )

    def ask(self, tenant: Tenant = ANONYMOUS, size: Amount = Amount(1, 400, 100), priority: int = 0) -> None:  # noqa: B008
        self.tasks.append(asyncio.create_task(self._ask(tenant, size, priority)))

    async def _ask(self, tenant: Tenant, size: Amount, priority: int) -> str:
        try:
            async with self.queue.turn("m", tenant, priority=priority, size=size, since=self.now):
                self.order.append(tenant.name)
                self.encoding += 1
                self.most_encoding = max(self.encoding, self.most_encoding)
                await asyncio.sleep(0)
                self.encoding -= 1
                self.queued += 1
        except RequestError as error:
            return f"{error.status} {error.retry_after_seconds} {error}"
        return "went on"

    def wake(self) -> None:
        self.workers = [READY]
        self.queue.look()

    async def settle(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    def results(self) -> Counter[str]:
        return Counter(
            task.result() if task.done() and not task.cancelled() else "held" for task in self.tasks
        )


@asynccontextmanager
async def running(**fields: Any) -> AsyncGenerator[Model, None]:
    model = Model(**fields)
    await model.queue.start()
    try:
        yield model
    finally:
        for task in model.tasks:
            task.cancel()
        await asyncio.gather(*model.tasks, return_exceptions=True)
        await model.queue.stop()
        assert model.queue.total == NOTHING


async def test_requests_are_held_while_no_worker_is_ready_and_go_on_when_one_is() -> None:
    async with running() as model:
        for _ in range(3):
            model.ask()
        await model.settle()
        assert (model.results()["held"], model.queue.held_by_model()) == (3, {"m": (3, 300)})

        model.workers = [LOADING]
        model.queue.look()
        await model.settle()
        assert model.results()["held"] == 3

        model.wake()
        await model.settle()

    assert model.results() == {"went on": 3}


async def test_no_more_go_on_than_the_next_queue_takes_and_are_encoded_at_once() -> None:
    async with running() as model:
        for _ in range(50):
            model.ask()
        model.wake()
        await model.settle()
        assert model.results() == {"went on": RELEASED_REQUESTS, "held": 50 - RELEASED_REQUESTS}
        assert model.queue.holds("m")

        model.queued -= 3  # workers have taken them
        model.queue.look()
        await model.settle()
        assert model.results()["went on"] == RELEASED_REQUESTS + 3

        for _ in range(20):
            model.queued = 0
            model.queue.look()
            await model.settle()

    assert model.results() == {"went on": 50}
    assert model.most_encoding == ENCODING_THREADS
    assert not model.queue.holds("m")


async def test_tenants_go_on_by_turns_and_not_in_the_order_of_arrival() -> None:
    async with running() as model:
        for _ in range(20):
            model.ask(A)
        await model.settle()
        for _ in range(4):
            model.ask(B)
        model.wake()
        await model.settle()

    assert Counter(model.order[:RELEASED_REQUESTS]) == {"a": 2, "b": 2}


async def test_a_more_urgent_request_of_a_tenant_goes_before_its_others() -> None:
    async with running(queued=RELEASED_REQUESTS - 1) as model:
        model.ask(A, priority=5)
        model.ask(replace(A, key_id="urgent"), priority=1)
        model.wake()
        await model.settle()

    assert [task.done() and not task.cancelled() for task in model.tasks] == [False, True]


async def test_a_request_waits_for_the_tokenizer_of_a_ready_worker_for_five_seconds() -> None:
    async with running(tokenizer_known=False) as model:
        model.ask()
        model.wake()
        await model.settle()
        assert model.results()["held"] == 1
        model.now += 5
        model.queue.look()
        await model.settle()

    assert model.results() == {"went on": 1}


@pytest.mark.parametrize(
    ("workers", "missing"),
    [([], "no replica has been started yet"), ([LOADING], "started: 1, of them ready: none")],
)
async def test_a_request_that_was_held_for_long_enough_gets_a_503_that_names_what_is_missing(
    workers: list[WorkerStatus], missing: str
) -> None:
    async with running(hold_seconds=0.01, workers=workers) as model:
        model.ask()
        await asyncio.sleep(0.05)

    (result,) = model.results()
    assert result.startswith("503 5 model 'm' was asleep and not ready to answer within 0.01 seconds")
    assert missing in result


async def test_requests_that_may_not_be_held_at_all_are_reported_all_the_same() -> None:
    async with running(hold_seconds=0.0) as model:
        model.ask()
        await asyncio.sleep(0.02)
        during = model.queue.reported(), model.queue.held_by_model()
        model.now += REPORTED_SECONDS
        afterwards = model.queue.reported()

    assert during == ({"m": (1, 0)}, {"m": (0, 0)})
    assert afterwards == {"m": (0, 0)}


async def test_a_router_that_is_about_to_end_refuses_what_it_holds_and_what_comes() -> None:
    async with running() as model:
        model.ask()
        await model.settle()
        model.queue.drain()
        model.ask()
        await model.settle()

    (result,) = model.results()
    assert model.results()[result] == 2
    assert result.startswith(
        "503 1 model 'm' is not ready to answer, and this router is about to end: no replica"
    )


async def test_requests_of_a_model_that_may_not_sleep_any_more_go_on() -> None:
    async with running() as model:
        model.ask()
        await model.settle()
        model.hold_seconds = None
        model.queue.look()
        await model.settle()

    assert model.results() == {"went on": 1}


async def test_a_request_waits_behind_others_as_long_as_they_where_the_model_may_not_sleep_any_more() -> None:
    """Its fleet has woken and got a least number of replicas while requests are still held."""
    async with running() as model:
        for _ in range(20):
            model.ask()
        model.wake()
        await model.settle()
        model.hold_seconds = None
        model.ask()
        await asyncio.sleep(0.01)  # longer than a wait of 0 seconds
        assert model.results() == {"went on": RELEASED_REQUESTS, "held": 21 - RELEASED_REQUESTS}

        for _ in range(20):
            model.queued = 0
            model.queue.look()
            await model.settle()

    assert model.results() == {"went on": 21}


async def test_a_fault_while_requests_are_let_on_does_not_end_the_service() -> None:
    async with running() as model:
        model.ask()
        await model.settle()
        model.workers = [cast(WorkerStatus, SimpleNamespace())]  # which nothing can be asked
        model.queue.look()
        await model.settle()
        assert model.results() == {"held": 1}

        model.wake()
        await model.settle()

    assert model.results() == {"went on": 1}


@pytest.mark.parametrize(
    ("sizes", "bound"),
    [
        ([Amount(1, 1, 1)] * 3, Amount(2, 100, 100)),
        ([Amount(1, 40, 1)] * 3, Amount(9, 100, 100)),
        ([Amount(1, 1, 40)] * 3, Amount(9, 100, 100)),
    ],
)
async def test_each_bound_refuses_what_passes_it(sizes: list[Amount], bound: Amount) -> None:
    async with running(bound=bound) as model:
        for size in sizes:
            model.ask(size=size)
        await model.settle()
        results = model.results()

    (refused,) = results.keys() - {"held"}
    assert results == {"held": 2, refused: 1}
    assert refused.startswith(
        "429 5 model 'm' is asleep, and no more requests are held until it wakes: at most"
    )


async def test_a_tenant_among_others_may_have_as_much_as_is_free() -> None:
    async with running(bound=Amount(8, 2**20, 2**20)) as model:
        for _ in range(8):
            model.ask(A)
        model.ask(B)
        await model.settle()
        results = model.results()

    assert (results["held"], len(results)) == (5, 2)  # four of the first tenant, one of the second
    assert any("has its share of what is held" in result for result in results)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from(["a", "b", "c"]), st.integers(0, 50)),
        st.tuples(st.just("leave"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("wake"), st.booleans(), st.just(0)),
        st.tuples(st.just("take"), st.integers(0, 8), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_no_sequence_of_events_passes_a_bound_or_keeps_a_place(
    steps: list[tuple[Any, ...]],
) -> None:
    async def play() -> None:
        bound = Amount(6, 200, 50)
        async with running(bound=bound) as model:
            for kind, one, size in steps:
                if kind == "ask":
                    model.ask(Tenant(name=one), Amount(1, 4 * size, size))
                elif kind == "leave" and one < len(model.tasks):
                    model.tasks[one].cancel()
                elif kind == "wake":
                    model.workers = [READY] if one else []
                    model.queue.look()
                elif kind == "take":
                    model.queued = max(model.queued - one, 0)
                    model.queue.look()
                await asyncio.sleep(0)
                assert model.queue.total.within(bound)
                assert model.queued <= RELEASED_REQUESTS
            await model.settle()
            held = model.results()["held"] - sum(task.cancelled() for task in model.tasks)
            assert model.queue.total.requests == sum(
                requests for requests, _ in model.queue.held_by_model().values()
            )
            assert model.queue.total.requests == held
            model.workers = [READY]
            for _ in range(20):
                model.queued = 0
                model.queue.look()
                await model.settle()
            assert model.queue.total == NOTHING
            assert not any(sum(held) for held in model.queue.held_by_model().values())

    asyncio.run(play())
