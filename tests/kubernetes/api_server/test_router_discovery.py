"""A router that finds its workers in a real API server; EndpointSlices are made by hand, workers are stubs.

"Away" is a proxy between router and API server that resets and refuses; "silent" is one that drops all bytes.
"""

import asyncio
import time
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from warmfleet_testing.cluster.model_deployment_api import served_model_deployments
from warmfleet_testing.processes.fault_proxy import running_fault_proxy
from warmfleet_testing.router.discovered_fleet import (
    ROOT,
    DiscoveredFleet,
    SlicedPod,
    kubeconfig_of,
    kubeconfig_through,
    pod,
    worker_address,
)
from warmfleet_testing.router.router_fixture import running_router
from warmfleet_testing.router.router_in_pod import router_in_pod

NAMESPACE = "router-discovery"


@pytest.fixture(scope="module", autouse=True)
def address():
    with worker_address() as address:
        yield address


@pytest.fixture(scope="module")
def model_api(control_plane):
    with served_model_deployments(control_plane, NAMESPACE) as api:
        yield api


@pytest.fixture
def fleet(model_api):
    """Nothing is left for the next test."""
    yield DiscoveredFleet(model_api)
    model_api.control_plane.kubectl(
        "-n", NAMESPACE, "delete", "modeldeployments,endpointslices", "--all", "--wait=false"
    )


class Rule(NamedTuple):
    group: str
    resources: str
    verbs: str


def documented_rules():
    """The router's rights in docs/reference/rbac.md."""
    text = (Path(__file__).parents[3] / "docs" / "reference" / "rbac.md").read_text()
    section = text.partition("## What a router may do")[2].partition("\n## ")[0]
    rows = [
        line.strip("| ").split("|") for line in section.splitlines() if line.startswith("| model namespaces")
    ]
    rules = []
    for row in rows:
        _, group, resources, _, verbs, _ = (cell.strip().replace("`", "").replace(" ", "") for cell in row)
        rules.append(Rule(group, resources, verbs))
    assert len(rules) == 2
    return rules


def grant(kubectl, account):
    """What the documentation lists, and nothing else."""
    for rule in documented_rules():
        name = f"{account}-{rule.resources}"
        resource = f"--resource={rule.resources}.{rule.group}"
        kubectl("-n", NAMESPACE, "create", "role", name, f"--verb={rule.verbs}", resource)
        bound = (f"--role={name}", f"--serviceaccount={NAMESPACE}:{account}")
        kubectl("-n", NAMESPACE, "create", "rolebinding", name, *bound)


def rss_mib(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def routed(fleet, tmp_path, *, kubeconfig=None, **settings):
    discovery = fleet.discovery(tmp_path, kubeconfig=kubeconfig)
    return running_router([], tmp_path, discovery=discovery, allow_anonymous=True, **settings)


async def status(router, model, **fields):
    return (await router.ask("hello", model=model, **fields))[0]


async def until_status(router, model, wanted, seconds=30):
    deadline = time.monotonic() + seconds
    while (found := await status(router, model)) != wanted:
        assert time.monotonic() < deadline, f"{model}: {found}, not {wanted}"
        await asyncio.sleep(0.02)


async def until_ready(router, seconds=30):
    deadline = time.monotonic() + seconds
    while True:
        code, answer = await router.get("/readyz")
        if code == 200:
            return
        assert time.monotonic() < deadline, answer
        await asyncio.sleep(0.02)


@asynccontextmanager
async def routed_through_faults(fleet, tmp_path):
    """A ready router, the proxy between it and the API server, and the kubeconfig that leads through that."""
    async with running_fault_proxy(fleet.api.control_plane.url.replace("https:", "http:")) as proxy:
        through = kubeconfig_through(fleet.api.control_plane.kubeconfig, proxy.url, tmp_path)
        async with routed(fleet, tmp_path, kubeconfig=through) as router:
            await until_ready(router)
            yield router, proxy, through


async def test_a_deployments_workers_are_found_and_its_names_live_as_long_as_it(fleet, tmp_path):
    fleet.deploy(
        "smol",
        "org/smol-chat",
        routing={"policy": "RoundRobin"},
        kvCache={"size": "64Mi", "sharing": "Deployment"},
    )
    fleet.deploy("empty")
    with (
        pod("u1", NAMESPACE, name="org/smol-chat") as one,
        pod("u2", NAMESPACE, name="org/smol-chat") as two,
    ):
        fleet.slice("smol", one, SlicedPod("u2", two.port, (False, False, False)))
        async with routed(fleet, tmp_path) as router:
            await until_ready(router)
            # Ready means that its caches are known, too: no request has to wait for that, or is refused.
            assert await status(router, "org/smol-chat") == 200
            assert await status(router, f"{NAMESPACE}/smol") == 200
            await router.until(lambda: len(router.router.workers.fleet.workers("org/smol-chat")) == 2)
            _, models = await router.get("/v1/models")
            _, known = await router.get("/internal/fleet")
            code, headers, body = await router.ask("hello", model="empty")
            missing = await status(router, "smol")
            single, _ = await router.get("/v1/models/org/smol-chat")

            assert [model["id"] for model in models["data"]] == [
                "empty",
                "org/smol-chat",
                f"{NAMESPACE}/empty",
                f"{NAMESPACE}/smol",
            ]
            assert (code, headers["retry-after"], b"no_replica" in body) == (503, "1", True)
            assert (missing, single) == (404, 200)
            endpoints = {endpoint["uid"]: endpoint for endpoint in known["endpoints"]}
            assert endpoints["u1"]["deployment"] == f"{NAMESPACE}/smol"
            assert endpoints["u1"]["policy"] == "RoundRobin"
            assert endpoints["u1"]["name"] == "pod-u1"
            assert known["discovery"]["known"]
            assert known["discovery"]["problem"] == ""

            fleet.delete("smol")
            await until_status(router, "org/smol-chat", 404)
            assert await status(router, "empty") == 503


async def test_an_api_server_that_goes_away_under_traffic_fails_no_request(fleet, tmp_path):
    fleet.deploy("smol", "chat")
    with pod("u1", NAMESPACE) as one, pod("u2", NAMESPACE) as two:
        fleet.slice("smol", one)
        async with routed_through_faults(fleet, tmp_path) as (router, proxy, through):
            statuses, stop = [], asyncio.Event()

            async def traffic():
                while not stop.is_set():
                    statuses.append(await status(router, "chat", stream=True))

            askers = [asyncio.create_task(traffic()) for _ in range(4)]
            proxy.faults.refuse = True
            proxy.reset_all()
            await asyncio.sleep(3)
            _, away = await router.get("/internal/fleet")
            ready, _ = await router.get("/readyz")
            # What changes meanwhile is seen when it is back, and nothing has to be applied twice.
            fleet.slice("smol", one, two)
            # A router that starts now serves by what this one has kept on disk.
            async with routed(fleet, tmp_path, kubeconfig=through) as second:
                await until_ready(second)
                of_second = [await status(second, "chat") for _ in range(5)]
                _, started_blind = await second.get("/internal/fleet")
            proxy.faults.refuse = False
            await router.until(lambda: len(router.router.workers.fleet.workers()) == 2, 30)
            await router.until(lambda: not router.router.workers.discovery.state.problem, 30)
            stop.set()
            await asyncio.gather(*askers)

    assert len(statuses) > 20
    assert set(statuses) == {200}
    assert ready == 200
    assert "cannot be reached" in away["discovery"]["problem"]
    assert away["discovery"]["age_seconds"] > 2
    assert of_second == [200] * 5
    assert (started_blind["discovery"]["known"], started_blind["discovery"]["age_seconds"]) == (True, None)
    kept = tmp_path / "router" / "last-good.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert one.token.encode() not in kept.read_bytes()


async def test_a_watch_in_a_connection_that_is_dead_and_not_closed_is_given_up(fleet, tmp_path):
    fleet.deploy("smol", "chat")
    with pod("u1", NAMESPACE) as one, pod("u2", NAMESPACE) as two:
        async with routed_through_faults(fleet, tmp_path) as (router, proxy, _through):
            # A watch that has just brought something is open, and not about to be begun anew.
            fleet.slice("smol", one)
            await router.until(router.router.workers.fleet.workers, 30)
            proxy.faults.blackhole = True
            await until_status(router, "chat", 200)
            fleet.slice("smol", one, two)
            await router.until(lambda: "silent" in router.router.workers.discovery.state.problem, 30)
            assert await status(router, "chat") == 200
            proxy.faults.blackhole = False
            proxy.reset_all()
            await router.until(lambda: len(router.router.workers.fleet.workers()) == 2, 30)


async def test_another_pod_at_the_same_address_gets_nothing_that_was_meant_for_the_first(fleet, tmp_path):
    fleet.deploy("smol", "chat")
    async with routed(fleet, tmp_path) as router:
        with pod("u1", NAMESPACE) as first:
            fleet.slice("smol", first)
            await until_status(router, "chat", 200)
            asked = len(first.requests)
            # By the cluster another pod has the address, and the process there is still the first.
            fleet.slice("smol", SlicedPod("u2", first.port))
            await router.until(
                lambda: [v.endpoint.uid for v in router.router.workers.fleet.workers()] == ["u2"]
            )
            await router.until(lambda: router.router.workers.fleet.workers()[0].counts.hellos_refused > 0)
            assert {await status(router, "chat") for _ in range(5)} == {503}
            assert len(first.requests) == asked
        # One that has the uid, and the token of another namespace: no better.
        with pod("u2", "elsewhere", port=first.port) as impostor:
            refused = router.router.workers.fleet.workers()[0].counts.hellos_refused
            await router.until(
                lambda: router.router.workers.fleet.workers()[0].counts.hellos_refused > refused, 30
            )
            assert await status(router, "chat") == 503
            assert not impostor.requests
        with pod("u2", NAMESPACE, port=first.port) as second:
            await until_status(router, "chat", 200)
            assert second.requests[-1]["authorization"] == f"Bearer {second.token}"


async def test_a_terminating_pod_ends_its_streams_also_after_the_cluster_has_forgotten_it(fleet, tmp_path):
    fleet.deploy("smol", "chat")
    with pod("u1", NAMESPACE, events=60, event_seconds=0.05) as leaving, pod("u2", NAMESPACE) as staying:
        fleet.slice("smol", leaving)
        async with routed(fleet, tmp_path) as router:
            await until_ready(router)
            stream = asyncio.create_task(router.ask("hello", model="chat", stream=True))
            await router.until(leaving.arrived.is_set)
            fleet.slice("smol", SlicedPod("u1", leaving.port, (False, True, True)), staying)
            await router.until(
                lambda: [view.ready for view in router.router.workers.fleet.workers()] == [True, True]
            )
            fleet.slice("smol", staying)
            await router.until(
                lambda: [v.endpoint.uid for v in router.router.workers.fleet.workers()] == ["u2"]
            )
            asked = len(leaving.requests)
            assert {await status(router, "chat") for _ in range(5)} == {200}
            code, _, body = await stream

    assert (code, body.count(b"u1"), body.endswith(b"[DONE]\n\n")) == (200, 60, True)
    assert len(leaving.requests) == asked


async def test_the_older_of_two_deployments_has_a_name_until_it_is_deleted(fleet, tmp_path):
    fleet.deploy("older", "chat")
    await asyncio.sleep(1.1)  # creation is written down in whole seconds
    fleet.deploy("younger", "chat")
    with pod("u1", NAMESPACE, of="older") as one, pod("u2", NAMESPACE, of="younger") as two:
        fleet.slice("older", one)
        fleet.slice("younger", two)
        async with routed(fleet, tmp_path) as router:
            await until_ready(router)
            assert {await status(router, "chat") for _ in range(5)} == {200}
            assert (len(one.requests), len(two.requests)) == (5, 0)
            assert await status(router, f"{NAMESPACE}/younger") == 200
            epoch = router.router.workers.fleet.worker("u2").hello.epoch
            opened = two.requests.copy()
            fleet.delete("older")
            await router.until(lambda: "chat" in router.router.workers.fleet.worker("u2").served_names)
            assert {await status(router, "chat") for _ in range(5)} == {200}
            assert (len(one.requests), len(two.requests)) == (5, len(opened) + 5)
            # Its stream, and what is known of its cache, were not touched by the change.
            view = router.router.workers.fleet.worker("u2")
            assert (view.hello.epoch, view.counts.opened) == (epoch, 1)


def test_router_processes_with_a_service_account_are_one_service(fleet, tmp_path):
    """Two of them, as a chart runs them: they share the salt and nothing else."""
    kubectl = fleet.api.control_plane.kubectl
    kubectl("-n", NAMESPACE, "create", "serviceaccount", "router-process")
    grant(kubectl, "router-process")
    token = kubectl("-n", NAMESPACE, "create", "token", "router-process").strip()
    environment = {
        "WARMFLEET_WORKER_TOKEN_ROOT": ROOT.hex(),
        "WARMFLEET_SALT_KEY": "5a" * 32,
        "WARMFLEET_OPERATOR_TOKEN": "0f" * 32,
        "WARMFLEET_POD_NAMESPACE": NAMESPACE,
    }
    # A pod's name may have 63 characters; replicas differ in its end.
    name = "a-release-with-a-long-name-warmfleet-router-7d9f8b6c5d-".rjust(58, "x")
    flags = ("--host", "0.0.0.0", "--allow-anonymous", "--drain-seconds", "5")
    fleet.deploy("smol", "chat")
    kubeconfig = fleet.api.control_plane.kubeconfig
    with ExitStack() as stack:
        worker = stack.enter_context(pod("u1", NAMESPACE))
        fleet.slice("smol", worker)
        routers = [
            stack.enter_context(
                router_in_pod(
                    kubeconfig,
                    token,
                    tmp_path / end,
                    *flags,
                    f"--router-id={name}{end}",
                    environment=environment,
                )
            )
            for end in ("x2x4z", "y3y5z")
        ]
        body = {"model": "chat", "prompt": "hello"}
        for router in routers:
            with router.client() as client:
                assert client.post("/v1/completions", json=body).status_code == 200
                assert client.get("/internal/fleet").status_code == 401
                as_operator = {"authorization": f"Bearer {'0f' * 32}"}
                seen = client.get("/internal/fleet", headers=as_operator).json()
                assert [endpoint["uid"] for endpoint in seen["endpoints"]] == ["u1"]
        resident_mib = [rss_mib(router.process.pid) for router in routers]
        for router in routers:
            router.process.terminate()
        exit_codes = [router.process.wait(15) for router in routers]
        logs = "".join(router.log_text() for router in routers)

    assert exit_codes == [0, 0]
    first, second = worker.requests
    assert first["x-warmfleet-salt"] == second["x-warmfleet-salt"]
    assert first["x-warmfleet-router"] != second["x-warmfleet-router"]
    assert first["authorization"] == f"Bearer {worker.token}"
    for secret in (*environment.values(), worker.token, token):
        assert secret == NAMESPACE or secret not in logs
    assert "no salt key given" not in logs
    assert max(resident_mib) < 140, resident_mib


async def test_an_account_with_the_documented_permissions_is_enough_and_without_them_readiness_reports_why(
    fleet, tmp_path
):
    kubectl = fleet.api.control_plane.kubectl
    kubectl("-n", NAMESPACE, "create", "serviceaccount", "router")
    token = kubectl("-n", NAMESPACE, "create", "token", "router").strip()
    account = kubeconfig_of(fleet.api.control_plane.kubeconfig, token, tmp_path)
    async with routed(fleet, tmp_path, kubeconfig=account) as router:
        await router.until(lambda: "answers 403" in router.router.workers.discovery.state.problem)
        code, answer = await router.get("/readyz")
        assert code == 503
        assert f"modeldeployments in namespace {NAMESPACE}: answers 403" in answer["status"]
        assert await status(router, "chat") == 503

        grant(kubectl, "router")
        await until_ready(router)
        assert await status(router, "chat") == 404
        assert router.router.workers.discovery.state.problem == ""
