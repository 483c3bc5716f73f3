"""Router processes in front of a model that sleeps in a cluster: it wakes, or they end before."""

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from warmfleet_contracts.cache.fleet_totals import decode_totals
from warmfleet_testing.processes.modelled_cluster import (
    ModelledCluster,
    cluster_router,
    modelled_cluster,
    pod_token,
)
from warmfleet_testing.processes.plain_http import NO_TLS
from warmfleet_testing.router.router_process import RouterProcess
from warmfleet_testing.router.stub_worker import StubWorker, running_stub

MAY_SLEEP: Final[dict[str, Any]] = {
    "mode": "Active",
    "minReplicas": 0,
    "maxReplicas": 2,
    "zero": {"holdSeconds": 60},
}


@pytest.fixture
def cluster() -> Iterator[ModelledCluster]:
    """With the model `smol` that sleeps."""
    with modelled_cluster() as running:
        running.deploy("smol", model={"servedNames": ["chat"]}, autoscaling=MAY_SLEEP)
        yield running


@pytest.fixture
def requests() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(64) as threads:
        yield threads


@contextmanager
def woken(cluster: ModelledCluster) -> Iterator[StubWorker]:
    """One replica of the model."""
    stub = StubWorker(
        uid="pod-0",
        served_name="chat",
        aliases=("n/smol",),
        token=pod_token("pod-0"),
        max_running_sequences=4,
    )
    with running_stub(stub) as running:
        cluster.slice("smol", running)
        yield running


def ask(router: RouterProcess, *, model: str = "chat", stream: bool = False) -> httpx.Response:
    body = {"model": model, "prompt": "hello", "stream": stream}
    return httpx.post(f"{router.url}/v1/completions", json=body, timeout=60, verify=NO_TLS)


def held(router: RouterProcess) -> int:
    answer = httpx.get(f"{router.url}/internal/fleet/totals", verify=NO_TLS)
    return sum(model.held_requests for model in decode_totals(answer.content).models.values())


def wait_until(condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.02)


def test_held_requests_are_answered_unless_their_router_ends(
    cluster: ModelledCluster, requests: ThreadPoolExecutor, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        starting = [
            requests.submit(
                stack.enter_context, cluster_router(cluster, tmp_path / name, ("--linger-seconds", "2"))
            )
            for name in ("ended", "killed", "kept")
        ]
        ended, killed, kept = routers = [started.result() for started in starting]
        asking = {
            router.url: [
                requests.submit(ask, router, model=("chat", "n/smol")[n % 2], stream=n % 3 == 0)
                for n in range(count)
            ]
            for router, count in ((ended, 4), (killed, 4), (kept, 40))
        }
        wait_until(lambda: [held(router) for router in routers] == [4, 4, 40])
        listed = httpx.get(f"{kept.url}/v1/models", verify=NO_TLS).json()
        unknown = ask(kept, model="other")

        ended.process.send_signal(signal.SIGTERM)
        refused = [done.result() for done in as_completed(asking[ended.url], timeout=10)]
        late = ask(ended)
        code = ended.process.wait(timeout=20)
        killed.process.kill()
        broken = [done.exception() for done in as_completed(asking[killed.url], timeout=10)]
        assert held(kept) == 40
        stub = stack.enter_context(woken(cluster))
        answered = Counter(done.result().status_code for done in as_completed(asking[kept.url]))
        wait_until(lambda: not held(kept))

    assert [answer.status_code for answer in [*refused, late]] == [503] * 5
    assert {answer.headers["retry-after"] for answer in [*refused, late]} == {"1"}
    assert "about to end" in refused[0].json()["error"]["message"]
    assert code == 0
    assert all(isinstance(error, httpx.TransportError) for error in broken)
    assert (answered, len(stub.requests)) == ({200: 40}, 40)
    assert [model["id"] for model in listed["data"]] == ["chat", "n/smol"]
    assert unknown.status_code == 404
