"""The list that a router discovers in a cluster, and the state of that list."""

# ruff: noqa: ASYNC110 - what is waited for happens in other tasks

import asyncio
import os
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_router.discovery.kubernetes import (
    RECHECK_SECONDS,
    REFUSED_SECONDS,
    ClusterSettings,
    KubernetesDiscovery,
)
from warmfleet_router.discovery.resources import EndpointSliceObject, Metadata, ModelDeploymentObject
from warmfleet_router.discovery.snapshot_file import MAX_BYTES, ClusterSnapshot, SnapshotFile
from warmfleet_router.settings import parse_settings
from warmfleet_runtime.kubernetes.errors import ApiServerError
from warmfleet_runtime.kubernetes.informer import WatchTiming
from warmfleet_testing.cluster.versioned_api import VersionedApi

ROOT = bytes(range(32))
AT_ONCE = WatchTiming(first_backoff_seconds=0.01, longest_backoff_seconds=0.01)
MODELS, SLICES = "modeldeployments", "endpointslices"


def a_slice(*uids, of="m"):
    return {
        "metadata": {"labels": {"warmfleet.dev/model-deployment": of}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8000}],
        "endpoints": [
            {"addresses": [f"10.0.0.{number}"], "targetRef": {"kind": "Pod", "name": uid, "uid": uid}}
            for number, uid in enumerate(uids, 1)
        ],
    }


class Cluster:
    """A modelled API server and a discovery that reads it."""

    def __init__(self, path, *, namespaces=("n",), clock=time.monotonic):
        self.changed = asyncio.Event()
        self.fault = None
        self.api = VersionedApi(self.wait, interrupt=lambda: self.fault)
        settings = ClusterSettings(token_root=ROOT, namespaces=namespaces)
        self.discovery = KubernetesDiscovery(
            settings, path, timing=AT_ONCE, clock=clock, connect=self.api.connect
        )
        self.lists = []

    async def wait(self):
        await self.changed.wait()
        await asyncio.sleep(0)
        self.changed.clear()
        return True

    async def until(self, found, seconds=5):
        async with asyncio.timeout(seconds):
            while not found():
                await asyncio.sleep(0.005)

    async def __aenter__(self):
        async def read():
            async for discovered in self.discovery.watch():
                self.lists.append(discovered)

        self.reader = asyncio.create_task(read())
        return self

    async def __aexit__(self, *error):
        self.reader.cancel()
        await asyncio.gather(self.reader, return_exceptions=True)
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("watch ")]

    @property
    def uids(self):
        return [endpoint.uid for endpoint in self.lists[-1].endpoints] if self.lists else None


async def test_a_list_is_yielded_once_all_kinds_were_listed_and_after_each_change(tmp_path):
    async with Cluster(tmp_path / "kept") as cluster:
        cluster.api.put(MODELS, "m")
        cluster.api.put(SLICES, "s", a_slice("u1"))
        assert not cluster.discovery.state.is_known
        await cluster.until(lambda: cluster.uids == ["u1"])
        first, state = len(cluster.lists), cluster.discovery.state
        for number in range(20):  # as a rollout does
            cluster.api.put(SLICES, "s", a_slice("u1", f"v{number}"))
        cluster.changed.set()
        await cluster.until(lambda: cluster.uids == ["u1", "v19"])

    assert first == 1
    assert len(cluster.lists) == 2
    assert cluster.lists[-1].names == {"m", "n/m"}
    assert (state.is_known, state.problem, state.errors) == (True, "", 0)
    assert state.age_seconds < 5


async def test_deployments_without_slices_are_no_list(tmp_path):
    cluster = Cluster(tmp_path / "kept")
    cluster.api.put(MODELS, "m")
    cluster.api.put(SLICES, "s", a_slice("u1"))
    listed = cluster.api.read

    async def only_deployments(path, query, *, accept=""):
        if path.endswith(SLICES):
            raise ApiServerError("answers 403", status=403)
        return await listed(path, query)

    cluster.api.read = only_deployments
    async with cluster:
        await cluster.until(lambda: cluster.discovery.state.errors > 2)
        assert cluster.lists == []
        assert not cluster.discovery.state.is_known
        assert cluster.discovery.state.problem == "endpointslices in namespace n: answers 403"
        cluster.api.read = listed
        await cluster.until(lambda: cluster.uids == ["u1"])
        assert cluster.discovery.state.problem == ""


async def test_a_namespace_that_refuses_its_lists_keeps_no_new_router_from_serving_the_others(tmp_path):
    now = 0.0
    cluster = Cluster(tmp_path / "kept", namespaces=("left", "n"), clock=lambda: now)
    cluster.api.put(MODELS, "m")
    cluster.api.put(SLICES, "s", a_slice("u1"))
    listed = cluster.api.read

    async def refuse_one(path, query, *, accept=""):
        if "/left/" in path:
            raise ApiServerError("answers 403", status=403)
        return await listed(path, query)

    cluster.api.read = refuse_one
    async with cluster:
        await cluster.until(lambda: cluster.discovery.state.errors > 4)
        await asyncio.sleep(2 * RECHECK_SECONDS)
        assert not cluster.discovery.state.is_known, "an API server that has just started refuses for seconds"
        now = REFUSED_SECONDS
        await cluster.until(lambda: cluster.uids == ["u1"])
        assert "in namespace left: answers 403" in cluster.discovery.state.problem


async def test_the_count_of_errors_never_falls_when_watches_begin_anew(tmp_path):
    cluster = Cluster(tmp_path / "kept")

    async def refuse(path, query, *, accept=""):
        raise ApiServerError("answers 403", status=403)

    cluster.api.read = refuse
    async with cluster:
        await cluster.until(lambda: cluster.discovery.state.errors > 2)
    counted = cluster.discovery.state.errors
    async with cluster:
        await asyncio.sleep(0)
        assert cluster.discovery.state.errors >= counted
        await cluster.until(lambda: cluster.discovery.state.errors > counted)


async def test_a_router_that_starts_while_the_api_server_is_away_takes_the_list_on_disk(tmp_path):
    path = tmp_path / "router" / "kept"
    async with Cluster(path) as cluster:
        cluster.api.put(MODELS, "m")
        cluster.api.put(SLICES, "s", a_slice("u1"))
        await cluster.until(path.exists)
    content = path.read_bytes()
    second = Cluster(path)
    second.fault = ApiServerError("cannot be reached")
    async with second:
        await second.until(lambda: second.uids == ["u1"])
        state = second.discovery.state
        assert (state.is_known, state.problem, state.age_seconds) == (True, "cannot be reached", float("inf"))
        second.fault = None
        second.api.put(MODELS, "m")
        await second.until(lambda: second.uids == [])  # once the API server answers, its list counts
        await second.until(lambda: second.discovery.state.problem == "")

    assert path.stat().st_mode & 0o777 == 0o600
    assert second.lists[0] == cluster.lists[-1]
    tokens = [endpoint.token for endpoint in cluster.lists[-1].endpoints]
    assert tokens
    assert all(secret not in content for secret in (*tokens, ROOT, ROOT.hex().encode()))
    # Nothing half written is left; a write that was under way when discovery ended may still end.
    await second.until(lambda: list(path.parent.iterdir()) == [path])


@pytest.mark.parametrize("namespaces", [(), ("n", "o")])
async def test_the_list_of_other_namespaces_is_not_taken(tmp_path, namespaces):
    SnapshotFile(tmp_path / "kept").write(ClusterSnapshot(("n",), (), ()))
    cluster = Cluster(tmp_path / "kept", namespaces=namespaces)
    cluster.fault = ApiServerError("cannot be reached")
    async with cluster:
        await cluster.until(lambda: cluster.discovery.state.errors)
        assert not cluster.discovery.state.is_known


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"namespaces":["n"],"deployments":[{}],"slices":[]}', b"\xff" * 9]
)
def test_a_damaged_list_on_disk_is_as_none(tmp_path, content):
    (tmp_path / "kept").write_bytes(content)

    assert SnapshotFile(tmp_path / "kept").read(("n",)) is None


def test_a_list_of_another_version_or_beyond_the_limit_is_as_none(tmp_path):
    kept = SnapshotFile(tmp_path / "kept")
    kept.write(ClusterSnapshot(("n",), (), (), version=2))
    assert kept.read(("n",)) is None
    with (tmp_path / "kept").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert kept.read(("n",)) is None
    assert SnapshotFile(tmp_path / "absent").read(("n",)) is None


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path):
    (tmp_path / "file").write_text("")

    SnapshotFile(tmp_path / "file" / "kept").write(ClusterSnapshot((), (), ()))  # its folder cannot be made


TEXTS = st.text(max_size=6)
METADATA = st.builds(
    Metadata,
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    st.integers(0, 1 << 60),
    st.none() | st.dictionaries(TEXTS, TEXTS, max_size=2),
)


@given(
    st.lists(st.builds(ModelDeploymentObject, METADATA), max_size=3),
    st.lists(st.builds(EndpointSliceObject, METADATA, TEXTS), max_size=3),
)
def test_a_snapshot_is_read_as_it_was_written(tmp_path_factory, deployments, slices):
    file = SnapshotFile(tmp_path_factory.mktemp("kept") / "kept")
    kept = ClusterSnapshot(("a", "b"), tuple(deployments), tuple(slices))
    file.write(kept)

    assert file.read(("a", "b")) == kept


async def test_discovery_without_a_usable_kubeconfig_reports_it_and_goes_on(tmp_path):
    settings = ClusterSettings(token_root=ROOT, kubeconfig=tmp_path / "absent")
    discovery = KubernetesDiscovery(settings, tmp_path / "kept", timing=AT_ONCE)
    reader = asyncio.create_task(anext(discovery.watch()))
    async with asyncio.timeout(10):
        while discovery.state.errors < 2:
            await asyncio.sleep(0.01)
    assert not reader.done()
    assert "cannot be used" in discovery.state.problem
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)


def test_a_router_outside_a_cluster_never_imports_the_kubernetes_client():
    code = "import sys, warmfleet_router.__main__; sys.exit('kubernetes' in sys.modules)"

    assert (
        subprocess.run([sys.executable, "-c", code], env=os.environ, timeout=60, check=False).returncode == 0
    )


# Flags.

KUBERNETES = ("--discovery", "kubernetes")
VARIABLES = {"WARMFLEET_WORKER_TOKEN_ROOT": ROOT.hex()}


def test_a_router_in_a_pod_looks_in_its_own_namespace_unless_flags_name_others():
    own = {**VARIABLES, "WARMFLEET_POD_NAMESPACE": "models"}

    def namespaces(*flags):
        return parse_settings([*KUBERNETES, *flags], own).cluster.namespaces

    assert namespaces() == ("models",)
    assert namespaces("--namespace", "b", "--namespace", "a", "--namespace", "b") == ("a", "b")
    assert namespaces("--namespace", "all") == ()
    settings = parse_settings([*KUBERNETES], own)
    assert settings.cluster.token_root == ROOT
    assert ROOT.hex() not in repr(settings)
    assert parse_settings([], own).cluster is None


@pytest.mark.parametrize(
    ("arguments", "environment", "reason"),
    [
        (KUBERNETES, {"WARMFLEET_POD_NAMESPACE": "n"}, "WARMFLEET_WORKER_TOKEN_ROOT is not set"),
        (
            KUBERNETES,
            {"WARMFLEET_WORKER_TOKEN_ROOT": "planted", "WARMFLEET_POD_NAMESPACE": "n"},
            "hexadecimal",
        ),
        (KUBERNETES, VARIABLES, "--namespace: name one, or all"),
        ([*KUBERNETES, "--namespace", "No_Name"], VARIABLES, "'No_Name' is no name of a namespace"),
        (
            [*KUBERNETES, "--namespace", "n", "--endpoint", "a=http://b:1"],
            VARIABLES,
            "the cluster names workers",
        ),
        (["--namespace", "n"], VARIABLES, "only with --discovery kubernetes"),
        (["--kubeconfig", "x"], VARIABLES, "only with --discovery kubernetes"),
        (
            [*KUBERNETES, *(f"--namespace=n{number}" for number in range(65))],
            VARIABLES,
            "65 exceed 64; use all",
        ),
        ([*KUBERNETES, "--namespace", "n", "--router-id", "r" * 254], VARIABLES, "--router-id"),
    ],
)
def test_flags_that_make_no_sense_together_are_refused_by_name(capsys, arguments, environment, reason):
    with pytest.raises(SystemExit):
        parse_settings(arguments, environment)
    written = capsys.readouterr().err

    assert reason in written
    assert "planted" not in written
    assert ROOT.hex() not in written
