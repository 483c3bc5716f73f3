"""Computes prefixes ahead of requests, as routers ask for it."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Final

import msgspec
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from warmfleet_contracts.cache.prewarm import Prefix, PrewarmAnswer
from warmfleet_runtime.http.disconnect import cancel_on_disconnect
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.server.engine_client import EngineClient, EngineGoneError, SequenceRequest
from warmfleet_worker.server.sequence_handle import SequenceHandle
from warmfleet_worker.server.state import WorkerState

NO_OUTPUT: Final = SamplingParameters(max_output_tokens=0)


class PrewarmResponse(Response):
    """Computes prefixes and answers what came of it; gives up when the router disconnects."""

    def __init__(
        self, worker: WorkerState, prefixes: Iterable[Prefix], slot: AbstractContextManager[None]
    ) -> None:
        super().__init__()
        self._worker = worker
        self._prefixes = prefixes
        self._slot = slot

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        worker = self._worker
        with self._slot, worker.warmup.computing():
            async with cancel_on_disconnect(receive) as router:
                try:
                    answer = await compute_prefixes(
                        worker.engine, self._prefixes, is_ending=lambda: worker.draining
                    )
                except EngineGoneError as error:
                    raise worker.not_ready_error(str(error)) from error
        if not router.disconnected:
            worker.metrics.on_prewarmed(answer.computed_tokens)
            await JSONResponse(msgspec.structs.asdict(answer))(scope, receive, send)


async def compute_prefixes(
    engine: EngineClient, prefixes: Iterable[Prefix], *, is_ending: Callable[[], bool]
) -> PrewarmAnswer:
    """Have the engine compute prefixes, one after the other; cancellation gives up the rest.

    `is_ending` is asked before each: a worker that drains begins with none.

    Raises:
        EngineGoneError: the engine has ended, or does not keep up.
    """
    computed_tokens = cached_tokens = refused_prefixes = 0
    for prefix in prefixes:
        if is_ending():
            break
        token_ids = prefix.token_ids.tolist()
        request = SequenceRequest(
            prompt_token_ids=token_ids, sampling=NO_OUTPUT, salt=prefix.salt, is_idle=True
        )
        wake = asyncio.Event()
        [handle] = engine.submit([request], wake)
        with handle:
            reason = await _ended(handle, wake)
        if reason != "length" or handle.cached_prefix is None:
            refused_prefixes += 1
            continue
        cached_tokens += handle.cached_prefix.cached_tokens
        computed_tokens += len(token_ids) - handle.cached_prefix.cached_tokens
    return PrewarmAnswer(
        computed_tokens=computed_tokens, cached_tokens=cached_tokens, refused_prefixes=refused_prefixes
    )


async def _ended(handle: SequenceHandle, wake: asyncio.Event) -> str:
    while not handle.finished:
        wake.clear()
        await wake.wait()
    return handle.take().finish_reason
