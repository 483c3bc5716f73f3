"""The totals by which the number of replicas is decided have prompts that were computed."""

import asyncio
from contextlib import suppress
from pathlib import Path

import aiohttp

from warmfleet_contracts.cache.fleet_totals import FLEET_TOTALS_PATH, MissTokens, ModelTotals, decode_totals
from warmfleet_testing.router.router_fixture import RunningRouter, running_router
from warmfleet_testing.router.stub_worker import StubWorker, running_stub

PROMPT_TOKENS = "warmfleet_router_prompt_tokens_total{"
PROMPT = "".join(chr(ord("a") + number % 26) for number in range(640))


async def totals(router: RunningRouter) -> ModelTotals:
    async with router.http.get(router.url + FLEET_TOTALS_PATH) as response:
        return decode_totals(await response.read()).models.get("stub", ModelTotals())


async def until_stated(router: RunningRouter, tokens: int) -> None:
    """Wait for so many prompt tokens that workers stated, in answers and in what was given up."""
    async with asyncio.timeout(30):
        while True:
            async with router.http.get(router.url + "/metrics") as response:
                lines = (await response.text()).splitlines()
            if sum(float(line.split()[-1]) for line in lines if line.startswith(PROMPT_TOKENS)) >= tokens:
                return
            await asyncio.sleep(0.01)


async def test_a_client_that_gives_up_before_the_first_token_counts_for_nothing(tmp_path: Path) -> None:
    """A worker states what it found on admission: prompts that are not computed would grow the fleet."""
    stub = StubWorker(uid="w0")
    stub.faults.hold_after_events = 0
    with running_stub(stub):
        async with running_router([stub], tmp_path) as router:
            for asked in range(1, 4):
                asking = asyncio.create_task(router.ask(PROMPT, stream=True))
                await until_stated(router, 640 * asked)
                asking.cancel()
                with suppress(asyncio.CancelledError, aiohttp.ClientError):
                    await asking
            given_up = await totals(router)
            stub.faults.hold_after_events = None
            await router.ask(PROMPT, stream=True)
            streamed = await totals(router)
            await router.ask(PROMPT)
            answered = await totals(router)

    assert (given_up.prompt_tokens, given_up.misses) == (0, MissTokens())
    assert (streamed.prompt_tokens, answered.prompt_tokens) == (640, 1280)
