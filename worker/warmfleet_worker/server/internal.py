"""`/internal/`: endpoints for routers and operators."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from warmfleet_contracts.cache.contract_versions import common_version
from warmfleet_contracts.cache.kv_events import Hello, encode_message, hello_proof
from warmfleet_contracts.cache.prewarm import PrewarmRequest, decode_prewarm
from warmfleet_contracts.cache.worker_api import NONCE_HEADER, VERSIONS_HEADER
from warmfleet_contracts.errors import ContractError
from warmfleet_contracts.openai import RequestError
from warmfleet_runtime.http.body import decode_body, read_body
from warmfleet_runtime.http.disconnect import cancel_on_disconnect
from warmfleet_worker.server.engine_client import EngineGoneError
from warmfleet_worker.server.prewarm import compute_prefixes
from warmfleet_worker.server.state import WorkerState

MAX_NONCE_BYTES: Final = 64
MAX_EPOCH_CHARS: Final = 64
MAX_PREWARMS: Final = 8
"""Open at once; routers send one each."""


class Slots:
    """Counts what is open at once."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._open = 0

    @contextmanager
    def slot(self, limit: int) -> Iterator[None]:
        """Count one more, from its beginning to its end; 429 beyond `limit`."""
        if self._open >= limit:
            raise RequestError(
                f"{limit} {self._what} are open, which is the limit",
                status=429,
                code="overloaded",
                retry_after_seconds=1,
            )
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1


class InternalEndpoints:
    """Event stream, prompt assets and cache of one worker."""

    def __init__(self, worker: WorkerState) -> None:
        self._worker = worker
        self._streams = Slots("event streams")
        self._prewarms = Slots("prewarm requests")

    async def kv_events(self, request: Request) -> Response:
        """The event stream; opens before the engine is ready, and sends `Hello` once it is."""
        query = request.query_params
        nonce = _hex(NONCE_HEADER, request.headers.get(NONCE_HEADER, query.get("nonce", "")))
        after = query.get("after", "")
        if after and not (after.isascii() and after.isdecimal() and len(after) <= 20):
            raise RequestError(f"after: expected a position, got {after[:64]!r}", param="after")
        epoch = query.get("epoch", "")[:MAX_EPOCH_CHARS]
        try:
            version = common_version(request.headers.get(VERSIONS_HEADER), self._worker.contract_versions)
        except ContractError as error:
            raise RequestError(f"{VERSIONS_HEADER}: {error}", param=VERSIONS_HEADER) from error
        messages = self._messages(nonce, epoch, int(after) if after else None, version)
        return EventStream(messages, self._streams.slot(self._worker.settings.max_subscribers))

    async def tokenizer(self, request: Request) -> Response:
        """The assets with which a router encodes prompts, by their digest."""
        digest = request.path_params["digest"]
        if digest != self._worker.encoder.tokenizer_digest:
            raise RequestError("no tokenizer with this digest is here", status=404, code="not_found")
        body = msgspec.msgpack.encode(self._worker.assets)
        return Response(body, media_type="application/msgpack")

    async def cache(self, request: Request) -> Response:
        """Sizes and digest of the cache."""
        del request
        ready = self._worker.ready_engine()
        mirror, load = self._worker.events.mirror, self._worker.events.load
        return JSONResponse(
            {
                "epoch": ready.epoch,
                "seq": mirror.seq,
                "identity": ready.identity.hex(),
                "dtype": ready.dtype,
                "kernels": ready.kernels,
                "exact": ready.exact,
                "block_size_tokens": ready.block_size_tokens,
                "kv_bytes_per_token": ready.kv_bytes_per_token,
                "total_blocks": load.total_blocks,
                "pinned_blocks": load.pinned_blocks,
                "cached_blocks": load.cached_blocks,
                "resident_blocks": len(mirror),
                "resident_xor": mirror.digest.xor.hex(),
            }
        )

    async def prewarm(self, request: Request) -> Response:
        """Compute prefixes ahead of requests; the answer comes when they are computed. No body, no prefix."""
        body = await read_body(request)
        try:
            decoded = await decode_body(body, decode_prewarm) if body else PrewarmRequest()
        except ContractError as error:
            raise RequestError(str(error)) from error
        self._worker.ready_engine()
        return PrewarmResponse(self._worker, decoded, self._prewarms.slot(MAX_PREWARMS))

    async def clear_cache(self, request: Request) -> Response:
        """Forget every block without a holder."""
        del request
        self._worker.ready_engine()
        self._worker.engine.clear_cache()
        return Response(status_code=202)

    async def _messages(
        self, nonce: bytes, epoch: str, after: int | None, version: int
    ) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._worker.events.subscribe(epoch, after, version)) as stream:
            first = True
            async for data in stream:
                if first:
                    first = False
                    yield encode_message(self._hello(nonce), version)
                yield data

    def _hello(self, nonce: bytes) -> Hello:
        worker = self._worker
        ready = worker.engine.ready
        assert ready is not None, "the hub starts when the engine is ready"
        token, uid = worker.settings.token, worker.settings.uid
        return Hello(
            uid=uid,
            identity=ready.identity,
            block_size_tokens=ready.block_size_tokens,
            window_tokens=ready.window_tokens,
            epoch=ready.epoch,
            served_names=list(worker.settings.served_names),
            tokenizer_digest=worker.encoder.tokenizer_digest,
            max_model_length_tokens=ready.max_model_length_tokens,
            proof=hello_proof(token, nonce=nonce, uid=uid, identity=ready.identity) if token else b"",
            model_digest=ready.model_digest,
            exact=ready.exact,
        )


class EventStream(Response):
    """Writes frames until the hub ends the stream or the router disconnects."""

    def __init__(self, messages: AsyncGenerator[bytes, None], slot: AbstractContextManager[None]) -> None:
        super().__init__()
        self._messages = messages
        self._slot = slot

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        async with aclosing(self._messages):
            with self._slot:
                async with cancel_on_disconnect(receive):
                    await self._write(send)

    async def _write(self, send: Send) -> None:
        headers = [(b"content-type", b"application/octet-stream"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for data in self._messages:
            await send(_body(data, more=True))
        await send(_body(b"", more=False))


class PrewarmResponse(Response):
    """Computes prefixes and answers what came of it; gives up when the router disconnects."""

    def __init__(
        self, worker: WorkerState, request: PrewarmRequest, slot: AbstractContextManager[None]
    ) -> None:
        super().__init__()
        self._worker = worker
        self._request = request
        self._slot = slot

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        worker = self._worker
        with self._slot, worker.warmup.computing(requests_wait=self._request.requests_wait):
            async with cancel_on_disconnect(receive) as router:
                try:
                    answer = await compute_prefixes(
                        worker.engine,
                        self._request.prefixes,
                        within_seconds=self._request.within_seconds,
                        is_ending=lambda: worker.draining,
                    )
                except EngineGoneError as error:
                    raise worker.not_ready_error(str(error)) from error
        if not router.disconnected:
            worker.metrics.on_prewarmed(answer.computed_tokens)
            await JSONResponse(msgspec.structs.asdict(answer))(scope, receive, send)


def _body(data: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


def _hex(name: str, value: str) -> bytes:
    try:
        data = bytes.fromhex(value)
    except ValueError as error:
        raise RequestError(f"{name}: expected hexadecimal digits", param=name) from error
    if len(data) > MAX_NONCE_BYTES:
        raise RequestError(f"{name}: expected at most {MAX_NONCE_BYTES} bytes, got {len(data)}", param=name)
    return data
