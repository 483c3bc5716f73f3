"""Routers and workers of two releases: real ones, of which one side speaks only the version before."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from warmfleet_contracts.cache.contract_versions import CONTRACT_VERSION
from warmfleet_router.discovery.base import Endpoint
from warmfleet_router.discovery.static import StaticDiscovery
from warmfleet_testing.engine.worker_process import (
    TINY_NAME,
    WorkerProcess,
    running_worker,
    tiny_served_model,
)
from warmfleet_testing.router.router_fixture import RunningRouter, running_router

PREVIOUS: Final = CONTRACT_VERSION - 1
BLOCK_TOKENS: Final = 16
CONVERSATIONS: Final = 25
ROUNDS: Final = 8
TOKEN: Final = "token-of-both-workers"
MODULES: Final = {
    PREVIOUS: "warmfleet_testing.engine.previous_worker",
    CONTRACT_VERSION: "warmfleet_worker",
}


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, WorkerProcess]]:
    """A worker per version, with room for all that is asked; both start at once."""
    model = tiny_served_model(tmp_path_factory.mktemp("model"))
    with ExitStack() as stack:
        started = {
            version: stack.enter_context(
                running_worker(model, "--uid", f"w{version}", module=module, token=TOKEN, wait=False)
            )
            for version, module in MODULES.items()
        }
        for worker in started.values():
            worker.wait_until_ready()
        yield started


@pytest.mark.parametrize(
    ("routers", "workers_version"),
    [({PREVIOUS}, CONTRACT_VERSION), ({PREVIOUS, CONTRACT_VERSION}, PREVIOUS)],
    ids=["older router", "older worker"],
)
async def test_two_hundred_requests_meet_no_error_and_every_prediction_comes_true(
    workers: dict[int, WorkerProcess], tmp_path: Path, routers: set[int], workers_version: int
) -> None:
    uid, worker = f"w{workers_version}", workers[workers_version]
    endpoint = Endpoint(uid=uid, name=uid, url=worker.url, token=TOKEN.encode())
    decisions = []
    async with running_router(
        [], tmp_path, wait_ready=False, discovery=StaticDiscovery([endpoint]), contract_versions=routers
    ) as router:
        await router.until_known(1)
        status = router.router.workers.fleet.worker(uid)
        assert status is not None
        assert status.hello is not None
        assert status.hello.v == PREVIOUS
        # Each conversation has a beginning of its own, of many lengths, and grows by a round's tokens.
        prompts = [[number + 1] * (BLOCK_TOKENS + number) for number in range(CONVERSATIONS)]
        for turn in range(ROUNDS):
            asked = [asked_for(router, prompt, stream=n % 2 == 0) for n, prompt in enumerate(prompts)]
            decisions += await asyncio.gather(*asked)
            await until_all_is_known(router, uid, worker)
            prompts = [[*prompt, *range(20 + turn, 29 + turn)] for prompt in prompts]

    assert len(decisions) == 200
    for decision in decisions:
        found = {name: decision[name] for name in ("outcome", "mode", "retries", "difference")}
        assert found == {"outcome": "completed", "mode": "precise", "retries": 0, "difference": "none"}, (
            decision
        )
        assert decision["last_block_matches"] is True, decision
    assert sum(decision["actual_cached_tokens"] for decision in decisions) > 100 * BLOCK_TOKENS


async def asked_for(router: RunningRouter, prompt: list[int], *, stream: bool) -> dict[str, Any]:
    """The decision about one completion."""
    status, headers, body = await router.ask(
        prompt, stream=stream, model=TINY_NAME, max_tokens=4, ignore_eos=True
    )
    assert status == 200, body
    assert (
        body.endswith(b"data: [DONE]\n\n") if stream else json.loads(body)["usage"]["completion_tokens"] == 4
    )
    return (await router.get(f"/debug/decisions/{headers['x-warmfleet-decision']}"))[1]


async def until_all_is_known(router: RunningRouter, uid: str, worker: WorkerProcess) -> None:
    """Until nothing runs, and the router's set is the worker's."""
    await router.until_idle()
    index, known = router.router.workers.fleet.index, {}

    def is_known() -> bool:
        known.update(worker.wait_until_idle())
        return index.position(uid) == (known["epoch"], known["seq"]) and index.is_precise(uid)

    await asyncio.sleep(0.04)  # what the engine reported last may not have reached the worker's server
    await router.until(is_known)
    assert index.resident_blocks(uid) == known["resident_blocks"]
