"""What a router has a newcomer compute before it takes requests."""

import asyncio
from contextlib import asynccontextmanager, contextmanager

import httpx
import pytest

from warmfleet_contracts import metrics as names
from warmfleet_contracts.keys import encode_key_file
from warmfleet_router.discovery.base import Endpoint
from warmfleet_router.discovery.static import StaticDiscovery
from warmfleet_testing.engine.worker_process import running_worker, tiny_served_model
from warmfleet_testing.processes.plain_http import NO_TLS
from warmfleet_testing.processes.ports import free_port_range
from warmfleet_testing.router.full_fleet import held, occupied
from warmfleet_testing.router.planted_keys import bearer
from warmfleet_testing.router.router_fixture import WorkerAddress, running_router
from warmfleet_testing.router.stub_worker import StubWorker, running_stub

HOT = list(range(1000, 1064))
"""Four blocks that prompts share."""


@contextmanager
def old_and_new(**fields):
    """A worker that serves, and one that is to wait for prefixes."""
    newcomer = StubWorker(uid="new", waits_for_prefixes=True)
    newcomer.faults.hold_snapshot = True
    with running_stub(StubWorker(uid="old", **fields)) as old, running_stub(newcomer) as new:
        yield old, new


@asynccontextmanager
async def serving(old, new, home, **settings):
    async with running_router([old, new], home, wait_ready=False, **settings) as router:
        await router.until_known(1)
        yield router


async def arrives(router, new):
    """The newcomer's engine is ready; returns once it was prewarmed."""
    new.faults.hold_snapshot = False
    await router.until(lambda: new.prewarms)
    await router.until_known(2)


async def asked_with(router, prefix, count, headers=None):
    for number in range(count):
        status, _, body = await router.ask([*prefix, *range(20 * number, 20 * number + 20)], headers=headers)
        assert status == 200, body
        await router.until_idle()


def sent(new):
    return [list(prefix.token_ids) for prefix in new.prewarms[0].prefixes]


async def test_a_newcomer_computes_what_prompts_share_before_it_gets_any(tmp_path):
    with old_and_new() as (old, new):
        async with serving(old, new, tmp_path) as router:
            await asked_with(router, HOT, 5)
            assert not new.requests
            await arrives(router, new)

            assert sent(new)[0] == HOT
            assert router.router.workers.fleet.index.resident_blocks("new") == 4


async def test_prompts_that_came_once_are_not_computed_ahead(tmp_path):
    with old_and_new() as (old, new):
        async with serving(old, new, tmp_path) as router:
            for number in range(5):
                await asked_with(router, range(1000 * number, 1000 * number + 64), 1)
            await arrives(router, new)

            assert not new.prewarms[0].requests_wait
            assert sent(new) == []


async def test_what_comes_most_often_is_computed_first(tmp_path):
    rare, often = list(range(2000, 2064)), list(range(3000, 3032))
    with old_and_new() as (old, new):
        async with serving(old, new, tmp_path) as router:
            await asked_with(router, rare, 3)
            await asked_with(router, often, 8)
            await arrives(router, new)

            assert sent(new)[:2] == [often, rare]


async def test_a_newcomer_is_ready_at_once_while_requests_wait(tmp_path):
    with old_and_new(max_running_sequences=1) as (old, new):
        async with serving(old, new, tmp_path) as router:
            await asked_with(router, HOT, 3)
            asking = await occupied(router, old, 1)
            asking.append(asyncio.create_task(router.ask("waits")))
            await router.until(lambda: held(router).requests)

            await arrives(router, new)

            assert new.prewarms[0].requests_wait
            assert sent(new) == []
            await router.until(lambda: new.requests)
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)


async def test_a_worker_is_prewarmed_once_in_its_life(tmp_path):
    with old_and_new() as (old, new):
        async with serving(old, new, tmp_path) as router:
            await arrives(router, new)
            new.total_blocks = 0  # its engine stalls
            for _ in range(3):
                new.publish()
                await asyncio.sleep(0.05)

            assert len(new.prewarms) == 1


@pytest.mark.parametrize("fault", ["refuse_status", "hold_headers"])
async def test_a_newcomer_that_does_not_answer_disturbs_no_request(tmp_path, fault):
    with old_and_new() as (old, new):
        setattr(new.faults, fault, 500 if fault == "refuse_status" else True)
        async with serving(old, new, tmp_path) as router:
            await asked_with(router, HOT, 2)
            new.faults.hold_snapshot = False
            await asyncio.sleep(0.1)
            await asked_with(router, HOT, 2)

            assert not new.requests


async def test_what_a_tenant_without_a_key_asked_for_is_not_computed(tmp_path, keys):
    with old_and_new() as (old, new):
        stays, goes = keys.add("stays"), keys.add("goes")
        path = tmp_path / "keys.json"
        path.write_bytes(encode_key_file(keys.file))
        async with serving(old, new, tmp_path, keys=keys.file, keys_path=path) as router:
            await asked_with(router, HOT, 3, bearer(goes))
            await asked_with(router, HOT[:32], 3, bearer(stays))
            path.write_bytes(encode_key_file(keys.file.without_key(goes.id)))
            await router.until(lambda: router.router.api.keys.key_count == 1)
            await arrives(router, new)

            assert sent(new) == [HOT[:32]]


@pytest.mark.parametrize(("owner", "expected"), [("ours/chat", HOT), ("theirs/chat", None)])
async def test_a_newcomer_computes_prompts_of_its_own_deployment_alone(tmp_path, owner, expected):
    with old_and_new() as (old, new):
        workers = StaticDiscovery(
            Endpoint(stub.uid, stub.uid, stub.url, token=stub.token.encode(), deployment=deployment)
            for stub, deployment in ((old, "ours/chat"), (new, owner))
        )
        async with serving(old, new, tmp_path, discovery=workers) as router:
            await asked_with(router, HOT, 3)
            await arrives(router, new)

            assert next(iter(sent(new)), None) == expected


# With real workers.


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_served_model(tmp_path_factory.mktemp("tiny"))


def metric(worker, name):
    text = httpx.get(f"{worker.url}/metrics", timeout=30, verify=NO_TLS).text
    return sum(
        float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{name}_total")
    )


async def test_a_real_newcomer_finds_shared_prompts_cached_from_its_first_request_on(tmp_path, model):
    port = free_port_range(2)
    addresses = [
        WorkerAddress(uid, f"http://127.0.0.1:{port + number}") for number, uid in enumerate(("old", "new"))
    ]
    flags = ("--kv-cache-bytes", "4000000", "--served-name", "stub")
    systems = [[(7 * number + index) % 250 for index in range(160)] for number in range(6)]

    def prompt(number):
        return [*systems[number % 6], *((number + index) % 250 for index in range(20))]

    with running_worker(model, *flags, "--port", str(port), "--uid", "old") as old:
        async with running_router(addresses, tmp_path, policy="RoundRobin", wait_ready=False) as router:
            await router.until_known(1)
            for number in range(36):
                assert (await router.ask(prompt(number), max_tokens=1))[0] == 200
            newcomer = running_worker(
                model, *flags, "--port", str(port + 1), "--uid", "new", "--prewarm-seconds", "60"
            )
            new = await asyncio.to_thread(newcomer.__enter__)  # the router goes on meanwhile
            try:
                await router.until_known(2)
                found = await cached_tokens_at(router, "new", (prompt(number) for number in range(100, 200)))

                assert found == [160] * 24
                assert metric(new, names.WORKER_PREWARMED_TOKENS) == 6 * 160
                assert metric(old, names.WORKER_PREWARMED_TOKENS) == 0
            finally:
                newcomer.__exit__(None, None, None)


async def cached_tokens_at(router, uid, prompts):
    """What that worker found cached of the prompts that it was given, until it was given 24."""
    found = []
    for prompt in prompts:
        _, headers, _ = await router.ask(prompt, max_tokens=1)
        _, decision = await router.get(f"/debug/decisions/{headers['x-warmfleet-decision']}")
        if decision["uid"] == uid:
            found.append(decision["actual_cached_tokens"])
        if len(found) == 24:
            break
    return found
