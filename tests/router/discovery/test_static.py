import asyncio
import json
import math
from dataclasses import replace

import pytest

from warmfleet_router.discovery.base import MAX_ENDPOINTS, Discovered, DiscoveryState, Endpoint
from warmfleet_router.discovery.static import StaticDiscovery
from warmfleet_router.errors import DiscoveryError, StreamUnavailableError
from warmfleet_router.workers.fleet import Fleet
from warmfleet_testing.router.router_fixture import running_router
from warmfleet_testing.router.stub_worker import StubWorker, running_stub, running_stubs


def endpoint(number, **changes):
    return Endpoint(
        **{"uid": f"uid-{number}", "name": f"worker-{number}", "url": "http://127.0.0.1:1", **changes}
    )


class Unreachable:
    async def open(self, *_request):
        raise StreamUnavailableError("connection refused")
        yield b""


async def test_a_static_list_is_given_once_as_it_is():
    endpoints = [endpoint(0), endpoint(1)]

    lists = [listed async for listed in StaticDiscovery(endpoints).watch()]

    assert lists == [Discovered(tuple(endpoints))]


@pytest.mark.parametrize("url", ["127.0.0.1:8100", "ftp://host", "http://", ""])
def test_an_address_that_is_no_http_address_is_refused_by_name(url):
    with pytest.raises(DiscoveryError, match="'uid-0'"):
        endpoint(0, url=url)


def test_two_endpoints_never_share_a_uid():
    with pytest.raises(DiscoveryError, match="uid-0"):
        StaticDiscovery([endpoint(0), endpoint(0, name="other")])


def test_a_list_has_a_bound():
    with pytest.raises(DiscoveryError, match=str(MAX_ENDPOINTS)):
        StaticDiscovery(endpoint(number) for number in range(MAX_ENDPOINTS + 1))


def test_a_token_is_not_shown():
    assert "secret" not in repr(endpoint(0, token=b"secret"))


async def test_an_unusable_list_leaves_the_last_good_one_in_place():
    class Flawed:
        state = DiscoveryState()
        is_refused = asyncio.Event()

        async def watch(self):
            yield Discovered((endpoint(0),))
            yield Discovered((endpoint(1), endpoint(1)))
            self.is_refused.set()
            raise OSError("the source is gone")

    discovery = Flawed()
    fleet = Fleet(discovery, Unreachable())

    await fleet.start()
    await asyncio.wait_for(discovery.is_refused.wait(), 10)
    names = [view.endpoint.name for view in fleet.workers()]
    await fleet.stop()

    assert names == ["worker-0"]


async def test_discovered_names_decide_over_the_workers_own():
    fleet = Fleet(StaticDiscovery([endpoint(0, served_names=("owned-name",)), endpoint(1)]), Unreachable())

    await fleet.start()
    await asyncio.sleep(0.01)
    served = [view.endpoint.uid for view in fleet.workers("owned-name")]
    models = fleet.models()
    await fleet.stop()

    assert served == ["uid-0"]
    assert models == ["owned-name"]


class ScriptedDiscovery:
    """A discovery that yields what the test puts in."""

    def __init__(self, *lists):
        self.state = DiscoveryState()
        self.queue = asyncio.Queue()
        for listed in lists:
            self.queue.put_nowait(listed)

    async def watch(self):
        while True:
            yield await self.queue.get()


async def test_a_change_of_name_owner_or_policy_leaves_the_stream_open(stub, tmp_path):
    stub.aliases = ("old", "new")
    before = Endpoint(uid="w0", name="a", url=stub.url, token=b"worker-token-planted", served_names=("old",))
    after = replace(before, served_names=("new",), policy="RoundRobin", shared_cache="n/d", deployment="n/d")
    discovery = ScriptedDiscovery(Discovered((before,), frozenset({"old"})))
    async with running_router([], tmp_path, discovery=discovery) as router:
        await router.until(
            lambda: [view for view in router.router.workers.fleet.workers("old") if view.precise]
        )
        discovery.queue.put_nowait(Discovered((after,), frozenset({"new"})))
        await router.until(lambda: router.router.workers.fleet.workers("new"))
        view = router.router.workers.fleet.worker("w0")
        statuses = [(await router.ask("hello", model=model))[0] for model in ("new", "old")]
        moved = replace(after, url=stub.url.replace("127.0.0.1", "localhost"))
        discovery.queue.put_nowait(Discovered((moved,), frozenset({"new"})))
        await router.until(lambda: router.router.workers.fleet.worker("w0").endpoint is moved)

    assert (view.endpoint, view.precise, view.counts.opened) == (after, True, 1)
    assert statuses == [200, 404]


async def test_a_known_model_without_a_worker_is_503_and_an_unknown_one_404(stub, tmp_path):
    stub.served_name = "org/chat"
    endpoint = Endpoint(
        uid="w0", name="a", url=stub.url, token=b"worker-token-planted", served_names=("org/chat",)
    )
    discovery = ScriptedDiscovery()
    async with running_router([], tmp_path, discovery=discovery) as router:

        async def answers(model):
            code, headers, body = await router.ask("hello", model=model)
            return code, headers.get("retry-after"), json.loads(body).get("error", {}).get("code")

        # Before the first list no name counts as unknown.
        assert await answers("org/chat") == (503, "1", "no_replica")
        discovery.queue.put_nowait(Discovered((), frozenset()))
        await router.until(lambda: router.router.workers.fleet.knows_its_models)
        assert await answers("org/chat") == (404, None, "model_not_found")
        discovery.queue.put_nowait(Discovered((endpoint,), frozenset({"org/chat", "n/idle"})))
        await router.until(
            lambda: [view for view in router.router.workers.fleet.workers("org/chat") if view.ready]
        )
        assert await answers("org/chat") == (200, None, None)
        assert await answers("n/idle") == (503, "1", "no_replica")
        assert await answers("idle") == (404, None, "model_not_found")
        _, models = await router.get("/v1/models")
        _, idle = await router.get("/v1/models/n/idle")
        async with router.http.post(
            router.url + "/tokenize", json={"model": "n/idle", "prompt": "x"}
        ) as answer:
            tokenized = answer.status

    assert [model["id"] for model in models["data"]] == ["n/idle", "org/chat"]
    assert (idle["id"], idle["max_model_len"]) == ("n/idle", None)
    assert tokenized == 503


async def test_a_router_of_a_cluster_is_ready_once_it_knows_the_fleet_also_an_empty_one(stub, tmp_path):
    discovery = ScriptedDiscovery()
    discovery.state = DiscoveryState(
        is_known=False, problem="the API server cannot be reached", age_seconds=math.inf
    )
    unreachable = Endpoint(uid="w9", name="b", url="http://127.0.0.1:1", served_names=("m",))
    endpoint = Endpoint(uid="w0", name="a", url=stub.url, token=b"worker-token-planted", served_names=("m",))
    async with running_router([], tmp_path, discovery=discovery) as router:
        unknown = await router.get("/readyz")
        async with router.http.get(router.url + "/metrics") as response:
            metrics = await response.text()
        discovery.state = DiscoveryState(errors=3, age_seconds=2.5)
        discovery.queue.put_nowait(Discovered((unreachable, endpoint), frozenset({"m"})))
        await router.until(lambda: router.router.workers.fleet.knows_its_models)
        while (found := await router.get("/readyz"))[0] != 200:
            assert found[1]["status"] == "what the workers' caches hold is not known yet"
        view = router.router.workers.fleet.worker("w0")
        discovery.queue.put_nowait(Discovered((), frozenset()))
        await router.until(lambda: not router.router.workers.fleet.workers())
        empty = await router.get("/readyz")
        async with router.http.get(router.url + "/metrics") as response:
            metrics_after = await response.text()

    assert unknown == (503, {"status": "the fleet is not known yet: the API server cannot be reached"})
    assert view.ready  # the router was not before it
    assert view.precise
    assert empty[0] == 200
    assert "warmfleet_router_discovery_age_seconds +Inf" in metrics
    assert "warmfleet_router_discovery_age_seconds 2.5" in metrics_after
    assert "warmfleet_router_discovery_errors_total 3.0" in metrics_after


async def test_a_worker_that_sent_its_hello_is_waited_for_until_it_reports_whether_it_is_ready(
    stub, tmp_path
):
    stub.faults.hold_snapshot, stub.served_name = True, "m"
    endpoint = Endpoint(uid="w0", name="a", url=stub.url, token=b"worker-token-planted", served_names=("m",))
    discovery = ScriptedDiscovery(Discovered((endpoint,), frozenset({"m"})))
    async with running_router([], tmp_path, discovery=discovery) as router:
        await router.until(lambda: any(view.hello for view in router.router.workers.fleet.workers()))
        greeted = await router.get("/readyz")
        stub.faults.hold_snapshot = False
        while (await router.get("/readyz"))[0] != 200:
            pass
        code, _, _ = await router.ask("hello", model="m")

    assert greeted == (503, {"status": "what the workers' caches hold is not known yet"})
    assert code == 200


async def test_a_worker_that_started_before_its_deployment_got_a_name_gets_no_request_by_that_name(tmp_path):
    with running_stub(StubWorker("old", served_name="m")) as old:
        new = StubWorker("new", served_name="m", aliases=("alias",))
        endpoints = [Endpoint(uid="old", name="old", url=old.url, served_names=("alias", "m"))]
        discovery = ScriptedDiscovery(Discovered(tuple(endpoints), frozenset({"alias", "m"})))
        async with running_router([], tmp_path, discovery=discovery) as router:
            await router.until_known(1)
            without_worker = await router.ask("hello", model="alias")
            with running_stub(new):
                endpoints.append(Endpoint(uid="new", name="new", url=new.url, served_names=("alias", "m")))
                discovery.queue.put_nowait(Discovered(tuple(endpoints), frozenset({"alias", "m"})))
                await router.until_known(2)
                for _ in range(6):
                    assert (await router.ask("hello", model="alias"))[0] == 200
                asked = {
                    decision.attempts[-1].choice.uid for decision in router.router.routing.decisions.newest(6)
                }
                by_both = {view.endpoint.uid for view in router.router.workers.fleet.workers("m")}

    assert without_worker[0] == 503
    assert asked == {"new"}
    assert by_both == {"old", "new"}


async def test_each_deployment_has_its_own_routing_policy(tmp_path):
    names = ("RoundRobin", "default", "Unheard")
    with running_stubs(6, prefill_tokens_per_second=2000.0, aliases=names) as stubs:
        asked = ["RoundRobin", "RoundRobin", "", "", "Unheard", "Unheard"]
        endpoints = tuple(
            Endpoint(
                uid=stub.uid, name=stub.uid, url=stub.url, served_names=(policy or "default",), policy=policy
            )
            for stub, policy in zip(stubs, asked, strict=True)
        )
        discovery = ScriptedDiscovery(Discovered(endpoints, frozenset({"RoundRobin", "default", "Unheard"})))
        async with running_router([], tmp_path, discovery=discovery, policy="LowestCost") as router:
            await router.until_known(6)
            for model in names:
                for _ in range(6):
                    assert (await router.ask("the same words " * 20, model=model))[0] == 200
                    await router.until_settled(stubs)
            policies = {
                decision.request.model: decision.request.policy
                for decision in router.router.routing.decisions.newest(18)
            }
            _, fleet = await router.get("/internal/fleet")

    counts = [len(stub.requests) for stub in stubs]
    assert counts[:2] == [3, 3]
    assert sorted(counts[2:4]) == sorted(counts[4:6]) == [0, 6]  # all where the first left its prefix
    assert policies == {"RoundRobin": "RoundRobin", "default": "LowestCost", "Unheard": "LowestCost"}
    assert [endpoint["policy"] for endpoint in fleet["endpoints"]][:3] == [
        "RoundRobin",
        "RoundRobin",
        "LowestCost",
    ]


async def test_the_fleets_view_names_deployment_model_and_hits(stub, tmp_path):
    stub.served_name = "m"
    endpoint = Endpoint(
        uid="w0", name="a", url=stub.url, token=b"worker-token-planted", served_names=("m",), deployment="n/d"
    )
    discovery = ScriptedDiscovery(Discovered((endpoint,), frozenset({"m"})))
    async with running_router([], tmp_path, discovery=discovery) as router:
        await router.until(lambda: [view for view in router.router.workers.fleet.workers() if view.precise])
        for _ in range(2):
            await router.ask([*range(10, 42)], model="m")
            await router.until_idle()
        _, fleet = await router.get("/internal/fleet")

    (seen,) = fleet["endpoints"]
    assert (seen["deployment"], seen["model_digest"], seen["exact"]) == ("n/d", None, True)
    assert fleet["tokens"] == {"m": {"prompt": 64, "cached": 16}}
    assert fleet["discovery"] == {"known": True, "problem": "", "age_seconds": 0.0, "errors": 0}
