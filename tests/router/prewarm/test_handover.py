"""What a router has workers that stay compute when others are about to go, over HTTP."""

import asyncio
import io
import json
from contextlib import asynccontextmanager, contextmanager

import pytest

from warmfleet_contracts.cache.handover import HANDOVER_PATH, MAX_HANDOVER_BYTES, MAX_VICTIMS
from warmfleet_contracts.keys import encode_key_file
from warmfleet_testing.engine.worker_process import running_worker, tiny_served_model
from warmfleet_testing.processes.ports import free_port_range
from warmfleet_testing.router.guarded_router import status_of
from warmfleet_testing.router.planted_keys import bearer
from warmfleet_testing.router.router_fixture import WorkerAddress, running_router
from warmfleet_testing.router.stub_worker import StubWorker, running_stub

TOKEN = "0f" * 32
OPERATOR = {"operator_token": TOKEN.encode()}
HOT = list(range(1000, 1064))
"""Four blocks that prompts share."""


@contextmanager
def three_workers():
    fields = {"prefill_tokens_per_second": 1000.0}  # what is cached weighs more than a step
    with (
        running_stub(StubWorker(uid="a", **fields)) as a,
        running_stub(StubWorker(uid="b", **fields)) as b,
        running_stub(StubWorker(uid="c", **fields)) as c,
    ):
        yield a, b, c


@asynccontextmanager
async def serving(workers, home, **settings):
    async with running_router(workers, home, **OPERATOR, **settings) as router:
        yield router


@asynccontextmanager
async def hot_fleet(home):
    """Three workers, one of which holds a prefix that prompts share: the router, that one, and the others."""
    with three_workers() as workers:
        async with serving(workers, home) as router:
            await asked_with(router, workers, HOT, 3)
            [victim] = holders(workers, HOT)
            yield router, victim, [worker for worker in workers if worker is not victim]


async def asked_with(router, workers, prefix, count, headers=None):
    for number in range(count):
        status, _, body = await router.ask([*prefix, *range(20 * number, 20 * number + 20)], headers=headers)
        assert status == 200, body
        await router.until_settled(workers)


async def hand_over(router, *victims, seconds=2.0, **fields):
    body = {"victims": list(victims), "seconds": seconds, **fields}
    url = router.url + HANDOVER_PATH
    async with router.http.post(url, json=body, headers=bearer(TOKEN)) as response:
        content = await response.read()
        assert response.status == 200, content
        return json.loads(content)


def holders(workers, prefix):
    """Those to which prompts with this prefix went."""
    return [worker for worker in workers if any(_begins(worker, prefix))]


def _begins(worker, prefix):
    for body in worker.bodies:
        yield json.loads(body)["prompt"][: len(prefix)] == prefix


def sent(worker):
    return [list(prefix.token_ids) for asked in worker.prewarms for prefix in asked.prefixes]


async def test_a_hot_prefix_is_computed_by_one_that_stays_and_the_next_prompts_go_there(tmp_path):
    async with hot_fleet(tmp_path) as (router, victim, stay):
        answer = await hand_over(router, victim.uid)

        assert (answer["moved_prefixes"], answer["computed_tokens"]) == (1, 64)
        [got] = [worker for worker in stay if worker.prewarms]
        assert sent(got) == [HOT]
        assert got.prewarms[0].within_seconds <= 2.0
        assert 0 <= got.prewarms[0].prefixes[0].unused_seconds < 10
        index = router.router.workers.fleet.index
        await router.until(lambda: index.resident_blocks(got.uid) == 4)
        assert (await hand_over(router, victim.uid))["skipped"] == {"held": 1}


async def test_a_worker_that_is_unknown_has_nothing_to_hand_over(tmp_path):
    async with hot_fleet(tmp_path) as (router, victim, stay):
        assert (await hand_over(router, "nothing")).keys() == {"seconds"}
        assert not any(worker.prewarms for worker in (victim, *stay))


async def test_nothing_is_moved_when_all_go(tmp_path):
    async with hot_fleet(tmp_path) as (router, _, _):
        assert (await hand_over(router, "a", "b", "c"))["skipped"] == {"no_room": 1}


async def test_a_worker_that_does_not_answer_holds_up_a_shrink_no_longer_than_its_time(tmp_path):
    async with hot_fleet(tmp_path) as (router, victim, stay):
        for worker in stay:
            worker.faults.hold_headers = True

        answer = await hand_over(router, victim.uid, seconds=0.3)

        assert answer["skipped"] == {"failed": 1}
        assert answer["seconds"] < 2.0


@pytest.mark.parametrize(
    ("claim", "outcome"),
    [
        ({"late_prefixes": -5}, {"skipped": {"failed": 1}}),
        ({"computed_tokens": 10**400}, {"skipped": {"failed": 1}}),
        ({"computed_tokens": 2**53}, {"moved_prefixes": 1, "computed_tokens": 64}),
        ({"refused_prefixes": 2**53, "late_prefixes": 2**53}, {"skipped": {"refused": 1}}),
    ],
)
async def test_what_a_worker_claims_about_its_prefixes_counts_as_far_as_it_can_be(tmp_path, claim, outcome):
    async with hot_fleet(tmp_path) as (router, victim, stay):
        for worker in stay:
            worker.prewarm_answer = claim

        answer = await hand_over(router, victim.uid)

        assert {name: value for name, value in answer.items() if name != "seconds"} == outcome


async def test_what_is_left_of_another_routers_share_is_moved_after_its_own(tmp_path):
    async with hot_fleet(tmp_path) as (router, victim, stay):
        first = await hand_over(router, victim.uid, share=0, shares=2)
        await router.until_settled([victim, *stay])  # what was moved is known by its worker's events
        answers = [first, await hand_over(router, victim.uid, share=1, shares=2)]

        assert sum(answer.get("moved_prefixes", 0) for answer in answers) == 1


async def test_what_a_tenant_without_a_key_asked_for_is_not_moved(tmp_path, keys):
    with three_workers() as workers:
        stays, goes = keys.add("stays"), keys.add("goes")
        path = tmp_path / "keys.json"
        path.write_bytes(encode_key_file(keys.file))
        async with serving(workers, tmp_path, keys=keys.file, keys_path=path) as router:
            await asked_with(router, workers, HOT, 3, bearer(goes))
            [victim] = holders(workers, HOT)
            path.write_bytes(encode_key_file(keys.file.without_key(goes.id)))
            await router.until(lambda: router.router.api.keys.key_count == 1)

            assert (await hand_over(router, victim.uid))["skipped"] == {"no_key": 1}
            assert await status_of(router, "POST", HANDOVER_PATH, bearer(stays), json={}) == 403


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"victims": [], "seconds": 1},
        {"victims": ["a"], "seconds": 0},
        {"victims": ["a"], "seconds": 31},
        {"victims": ["a"], "seconds": 1, "share": 2, "shares": 2},
        {"victims": ["a"] * (MAX_VICTIMS + 1), "seconds": 1},
        {"victims": ["a" * 600], "seconds": 1},
        {"victims": "a", "seconds": 1},
        {"victims": ["a"], "seconds": 1, "payback_seconds": -1},
    ],
)
async def test_a_request_that_is_none_is_refused(stub, tmp_path, body):
    async with serving([stub], tmp_path) as router:
        assert await status_of(router, "POST", HANDOVER_PATH, bearer(TOKEN), json=body) == 400
        assert await status_of(router, "POST", HANDOVER_PATH, json={"victims": ["a"], "seconds": 1}) == 401


async def test_a_body_beyond_the_limit_of_handovers_is_refused_before_it_is_read(stub, tmp_path):
    async with serving([stub], tmp_path) as router:
        body = io.BytesIO(b" " * (MAX_HANDOVER_BYTES + 1))
        assert await status_of(router, "POST", HANDOVER_PATH, bearer(TOKEN), data=body) == 413


async def test_an_operator_that_leaves_ends_what_its_router_waits_for(tmp_path):
    async with hot_fleet(tmp_path) as (router, victim, stay):
        for worker in stay:
            worker.faults.hold_headers = True
        asking = asyncio.create_task(hand_over(router, victim.uid, seconds=30.0))
        await router.until(lambda: any(worker.open_prewarms for worker in stay))
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await router.until(lambda: not any(worker.open_prewarms for worker in stay))
        for worker in stay:
            worker.faults.hold_headers = False

        assert (await hand_over(router, victim.uid))["moved_prefixes"] == 1


# With real workers.


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_served_model(tmp_path_factory.mktemp("tiny"))


async def test_after_a_handover_and_a_drain_the_next_requests_find_their_prefixes(tmp_path, model):
    flags = ("--kv-cache-bytes", "4000000", "--served-name", "stub")
    systems = [[(7 * number + index) % 250 for index in range(160)] for number in range(8)]

    def prompt(number):
        return [*systems[number % 8], *((number + index) % 250 for index in range(20))]

    port = free_port_range(2)
    with (
        running_worker(model, *flags, "--port", str(port), "--uid", "a") as a_process,
        running_worker(model, *flags, "--port", str(port + 1), "--uid", "b"),
    ):
        addresses = [
            WorkerAddress(uid, f"http://127.0.0.1:{port + number}") for number, uid in enumerate(("a", "b"))
        ]
        async with serving(addresses, tmp_path, policy="ConsistentHash") as router:
            at = {}
            for number in range(32):
                status, headers, body = await router.ask(prompt(number), max_tokens=1)
                assert status == 200, body
                at[number % 8] = await decided(router, headers)
            held = [number for number, decision in at.items() if decision["uid"] == "a"]
            assert held

            answer = await hand_over(router, "a", seconds=30.0)
            a_process.process.terminate()
            await router.until(lambda: not router.router.workers.fleet.worker("a").ready)

            assert answer["moved_prefixes"] == len(held), answer
            assert answer["computed_tokens"] == 160 * len(held)
            for number in held:
                _, headers, _ = await router.ask(prompt(100 * 8 + number), max_tokens=1)
                decision = await decided(router, headers)
                assert (decision["uid"], decision["actual_cached_tokens"]) == ("b", 160)


async def decided(router, headers):
    url = f"{router.url}/debug/decisions/{headers['x-warmfleet-decision']}"
    async with router.http.get(url, headers=bearer(TOKEN)) as response:
        return await response.json()
