"""A worker without a model: real HTTP on loopback, the real contract, and switches for faults.

It runs in a thread with an event loop of its own. Prompts are encoded and hashed as a worker does; one
prefill runs at a time at a fixed speed, its blocks are announced when it ends, followers of a block that is
being computed wait for it. The answer is a counter: "0 1 2 ...".
"""

import asyncio
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from warmfleet_contracts.cache.blocks import BlockHash, cacheable_tokens
from warmfleet_contracts.cache.contract_versions import ACCEPTED_VERSIONS, common_version
from warmfleet_contracts.cache.kv_events import (
    Frame,
    Hello,
    LoadReport,
    PlainAnswer,
    StepTimeFit,
    hello_proof,
)
from warmfleet_contracts.cache.prewarm import PREWARM_PATH, PrewarmAnswer, PrewarmRequest, decode_prewarm
from warmfleet_contracts.cache.worker_api import (
    ADMITTED_AFTER_HEADER,
    CACHED_TOKENS_HEADER,
    DISPATCH_HEADER,
    FIRST_TOKEN_AFTER_HEADER,
    GENERATED_TOKENS_HEADER,
    KV_EVENTS_PATH,
    LAST_BLOCK_HEADER,
    MISDIRECTED_STATUS,
    NONCE_HEADER,
    POSITION_HEADER,
    PROMPT_TOKENS_HEADER,
    ROUTER_ID_HEADER,
    SALT_HEADER,
    TOKENIZER_PATH,
    TOTAL_CACHED_TOKENS_HEADER,
    TOTAL_PROMPT_TOKENS_HEADER,
    UID_HEADER,
    VERSIONS_HEADER,
    PromptAssets,
)
from warmfleet_contracts.openai import RequestError, decode_chat_request, decode_completion_request
from warmfleet_contracts.prompts.encoder import PromptEncoder
from warmfleet_testing.cache.stub_cache import STUB_BLOCK_TOKENS, STUB_IDENTITY, StubCache
from warmfleet_testing.cache.stub_events import StubEvents
from warmfleet_testing.engine.digests import digest_of
from warmfleet_testing.engine.tiny_tokenizer import tiny_prompt_assets
from warmfleet_testing.processes.served_thread import served_thread
from warmfleet_testing.router.stub_faults import Faults


@dataclass
class StubWorker:
    """One stub; `running_stub` starts it."""

    uid: str
    served_name: str = "stub"
    aliases: tuple[str, ...] = ()
    """Further names that it reports as served."""
    token: str = ""
    max_running_sequences: int = 64
    total_blocks: int = 4096
    waits_for_prefixes: bool = False
    """It takes no requests until a router has prewarmed it."""
    prewarms: list[PrewarmRequest] = field(default_factory=list)
    """What routers had it compute ahead of requests."""
    prewarm_answer: dict[str, object] | None = None
    """What it answers; None: the truth."""
    max_model_length_tokens: int = 1_000_000
    prefill_tokens_per_second: float = 100_000.0
    event_seconds: float = 0.0
    events: int = 3
    plain_token_seconds: float = 0.0
    """Between the tokens of a plain answer, of which there are `events`."""
    event_padding_bytes: int = 0
    """Bytes of comment with each event."""
    written_events: int = 0
    """Events that the sockets have taken, over all answers."""
    assets: PromptAssets = field(default_factory=tiny_prompt_assets)
    faults: Faults = field(default_factory=Faults)
    contract_versions: AbstractSet[int] = ACCEPTED_VERSIONS
    """A worker of the release before speaks only the version before."""
    host: str = "127.0.0.1"
    port: int = 0
    url: str = ""
    requests: list[dict[str, str]] = field(default_factory=list)
    """Headers of each generation, lower case."""
    bodies: list[bytes] = field(default_factory=list)
    computed_tokens: list[int] = field(default_factory=list)
    """Uncached prompt tokens of each generation."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    arrived: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.encoder = PromptEncoder.from_assets(self.assets)
        self.cache = StubCache()
        self.running = 0
        self.held = 0
        """Of the running ones, those whose head is held back."""
        self.peak_running = 0
        """Of those whose last byte is not on the way: a worker has a free seat before that."""
        self._seated: set[int] = set()
        self.queued_tokens = 0
        self.admitted: dict[str, int] = {}
        self.open: Counter[str] = Counter()
        """Running ones of each router."""
        self.open_prewarms = 0
        """Requests for prefixes that are not answered."""
        self.ended = False
        """Whether a request was fatal to it."""
        self._plain_answers: dict[str, dict[int, PlainAnswer]] = {}
        self._events = StubEvents()

    # Event stream.

    @property
    def load(self) -> LoadReport:
        return LoadReport(
            running_sequences=self.running,
            max_running_sequences=self.max_running_sequences,
            queued_uncached_tokens=self.queued_tokens,
            total_blocks=0 if self.waits_for_prefixes else self.total_blocks,
            cached_blocks=len(self.cache.resident),
            step_time=StepTimeFit(
                base_seconds=0.001,
                per_prefill_token_seconds=1 / self.prefill_tokens_per_second,
                samples=100,
            ),
            admitted_dispatches=dict(self.admitted),
            open_dispatches=dict(+self.open),
            plain_answers={router: list(those.values()) for router, those in self._plain_answers.items()},
        )

    def publish(self, stored: Sequence[BlockHash] = (), removed: Sequence[BlockHash] = ()) -> None:
        self.cache.change(stored, removed)
        if not self.faults.silent_events:
            self._events.publish(self._frame(stored, removed))

    def _frame(
        self, stored: Sequence[BlockHash], removed: Sequence[BlockHash] = (), snapshot_left: int | None = None
    ) -> Frame:
        return Frame(
            epoch=self.uid,
            seq=self.cache.seq,
            stored=list(stored),
            removed=list(removed),
            snapshot_left=snapshot_left,
            digest=digest_of(self.cache.resident),
            load=self.load,
        )

    async def _heartbeats(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            self.publish()

    async def _kv_events(self, request: web.Request) -> web.StreamResponse:
        nonce = bytes.fromhex(request.headers[NONCE_HEADER])
        version = common_version(request.headers.get(VERSIONS_HEADER), self.contract_versions)
        token = self.token.encode()
        hello = Hello(
            uid=self.uid,
            identity=STUB_IDENTITY,
            block_size_tokens=STUB_BLOCK_TOKENS,
            window_tokens=0,
            epoch=self.uid,
            served_names=[self.served_name, *self.aliases],
            tokenizer_digest=self.encoder.tokenizer_digest,
            max_model_length_tokens=self.max_model_length_tokens,
            proof=hello_proof(token, nonce=nonce, uid=self.uid, identity=STUB_IDENTITY) if token else b"",
            exact=True,
        )
        return await self._events.follow(
            request,
            hello,
            lambda: self._frame(list(self.cache.resident), snapshot_left=0),
            version,
            is_held=lambda: self.faults.hold_snapshot,
        )

    async def _tokenizer(self, request: web.Request) -> web.Response:
        if request.match_info["digest"] != self.encoder.tokenizer_digest:
            return web.Response(status=404)
        return web.Response(body=msgspec.msgpack.encode(self.assets))

    async def _tokenize(self, request: web.Request) -> web.Response:
        self.requests.append({name.lower(): value for name, value in request.headers.items()})
        if self.faults.refuse_status:
            return web.json_response({"error": {}}, status=self.faults.refuse_status)
        if self.faults.hold_headers:
            await asyncio.Event().wait()
        tokens = self.encoder.encode_text((await request.json())["prompt"])
        return web.json_response(
            {"count": len(tokens), "max_model_len": self.max_model_length_tokens, "tokens": tokens}
        )

    async def _prewarm(self, request: web.Request) -> web.Response:
        self.open_prewarms += 1
        try:
            return await self._prewarmed(request)
        finally:
            self.open_prewarms -= 1

    async def _prewarmed(self, request: web.Request) -> web.Response:
        if self.faults.refuse_status:
            return web.json_response({"error": {}}, status=self.faults.refuse_status)
        if self.faults.hold_headers:
            await asyncio.Event().wait()
        asked = decode_prewarm(await request.read())
        self.prewarms.append(asked)
        for prefix in asked.prefixes:
            self.publish(self.cache.missing(self.cache.hashes(prefix.token_ids, prefix.salt)))
        self.waits_for_prefixes = False
        self.publish()
        if self.prewarm_answer is not None:
            return web.json_response(self.prewarm_answer)
        tokens = sum(len(prefix.token_ids) for prefix in asked.prefixes)
        return web.json_response(msgspec.structs.asdict(PrewarmAnswer(computed_tokens=tokens)))

    # Generation.

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        self.requests.append({name.lower(): value for name, value in request.headers.items()})
        if request.headers.get(UID_HEADER, self.uid) != self.uid:
            return web.Response(status=MISDIRECTED_STATUS)
        body = await request.read()
        self.bodies.append(body)
        # Before its arrival shows: a test, in another thread, may then end the fault for those that follow.
        is_held = self.faults.hold_headers
        self.arrived.set()
        # In one step, as a worker: a report that counts a request states that it includes its dispatch.
        router, dispatch = _dispatch_of(request.headers)
        self.admitted[router] = max(self.admitted.get(router, 0), dispatch)
        self.running += 1
        self.open[router] += 1
        self.held += is_held
        self._seated.add(id(request))
        self.peak_running = max(self.peak_running, len(self._seated))
        try:
            return await self._answer(request, body, is_held=is_held)
        except (asyncio.CancelledError, ConnectionError):
            self.cancelled.set()
            raise
        finally:
            self.running -= 1
            self.open[router] -= 1
            self.held -= is_held
            self._seated.discard(id(request))
            self.publish()

    async def _answer(self, request: web.Request, body: bytes, *, is_held: bool) -> web.StreamResponse:
        faults = self.faults
        if faults.fatal and faults.fatal in body:
            self.ended = True
            self._stop.set()
            await asyncio.Event().wait()
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            return web.Response(status=401)
        if faults.refuse_status:
            return web.json_response({"error": {}}, status=faults.refuse_status)
        if faults.close_before_headers:
            _close(request)
            return web.Response()
        if is_held:
            await asyncio.Event().wait()
        received_at = asyncio.get_running_loop().time()
        is_chat = request.path == "/v1/chat/completions"
        if is_chat:
            prompts = [self.encoder.encode_chat(decode_chat_request(body).messages)]
        else:
            prompts = [
                self.encoder.encode_text(prompt) if isinstance(prompt, str) else prompt
                for prompt in decode_completion_request(body).prompts
            ]
        tokens = prompts[0]  # only the first one is computed
        hashes = self.cache.hashes(tokens, bytes.fromhex(request.headers.get(SALT_HEADER, "")))
        cached = await self._admit(tokens, hashes)
        headers = {
            PROMPT_TOKENS_HEADER: str(len(tokens)),
            CACHED_TOKENS_HEADER: str(cached),
            POSITION_HEADER: f"{self.uid}:{self.cache.seq}",
            "server": "stub-insides",
        }
        if hashes:
            headers[LAST_BLOCK_HEADER] = "00" * 16 if faults.wrong_last_block else hashes[-1].hex()
        headers |= faults.headers
        words = " ".join(str(number) for number in range(self.events))
        if not json.loads(body).get("stream"):
            admitted_after = asyncio.get_running_loop().time() - received_at
            await self._prefill(len(tokens) - cached, hashes)
            first_token_after = asyncio.get_running_loop().time() - received_at
            await self._decode_plain(request.headers, admitted_after, first_token_after)
            headers[TOTAL_PROMPT_TOKENS_HEADER] = str(sum(len(prompt) for prompt in prompts))
            headers[TOTAL_CACHED_TOKENS_HEADER] = str(cached)
            if 2 in self.contract_versions:
                headers[ADMITTED_AFTER_HEADER] = f"{admitted_after:.6f}"
                headers[FIRST_TOKEN_AFTER_HEADER] = f"{first_token_after:.6f}"
            answer = json.dumps({"text": words, "worker": self.uid}).encode()
            headers |= {"content-type": "application/json", GENERATED_TOKENS_HEADER: str(self.events)}
            headers |= faults.headers
            response = web.StreamResponse(headers=headers)
            response.content_length = len(answer)
            await response.prepare(request)
            if faults.close_before_first_byte:
                _close(request)
                return response
            if faults.die_after_events is not None:
                await response.write(answer[:5])
                _close(request)
                return response
            self._seated.discard(id(request))
            await response.write(answer)
            return response
        response = web.StreamResponse(headers={**headers, "content-type": "text/event-stream"})
        await response.prepare(request)
        if faults.close_before_first_byte:
            _close(request)
            return response
        for _ in range(faults.pings):
            await response.write(b": ping\n\n")
            await asyncio.sleep(0.01)
        if faults.close_after_pings:
            _close(request)
            return response
        if faults.not_ready_after_pings:
            error = RequestError("gone", status=503, type="server_error", code="not_ready")
            await response.write(error.event())
            return response
        if is_chat:
            await response.write(b'data: {"role": "assistant"}\n\n')
        await self._prefill(len(tokens) - cached, hashes)
        await asyncio.sleep(faults.first_byte_delay_seconds)
        padding = b":" + b"x" * self.event_padding_bytes + b"\n" if self.event_padding_bytes else b""
        for number in range(self.events):
            if padding:
                await response.write(padding)
            if faults.hold_after_events == number:
                await asyncio.Event().wait()
            if faults.error_after_events == number:
                await response.write(faults.error.event())
                return response
            if faults.die_after_events == number:
                await response.write(b'data: {"half": ')
                await asyncio.sleep(0.01)
                _close(request)
                return response
            await response.write(b'data: {"text": "%d", "worker": "%s"}\n\n' % (number, self.uid.encode()))
            self.written_events += 1
            await asyncio.sleep(self.event_seconds)
        self._seated.discard(id(request))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _admit(self, tokens: list[int], hashes: list[BlockHash]) -> int:
        blocks = await self.cache.held(hashes)
        cached = min(blocks * STUB_BLOCK_TOKENS, cacheable_tokens(len(tokens), STUB_BLOCK_TOKENS))
        self.computed_tokens.append(len(tokens) - cached)
        self.queued_tokens += len(tokens) - cached
        self.cache.begin(hashes[blocks:])
        self.publish()
        return cached

    async def _prefill(self, uncached_tokens: int, hashes: list[BlockHash]) -> None:
        try:
            async with self._engine:
                await asyncio.sleep(uncached_tokens / self.prefill_tokens_per_second)
        finally:
            self.queued_tokens -= uncached_tokens
            self.cache.end(hashes)
        # Only now: what the report counts as still to be computed must not hold what it reports as stored.
        self.publish(stored=self.cache.missing(hashes))

    async def _decode_plain(
        self, headers: Mapping[str, str], admitted_after: float, first_token_after: float
    ) -> None:
        router, dispatch = _dispatch_of(headers)
        reported = self._plain_answers.setdefault(router, {})
        try:
            for generated in range(1, self.events + 1 if self.plain_token_seconds else 1):
                reported[dispatch] = PlainAnswer(dispatch, admitted_after, first_token_after, generated)
                self.publish()
                await asyncio.sleep(self.plain_token_seconds)
        finally:
            reported.pop(dispatch, None)

    # Life.

    async def serve(self, ready: threading.Event, stop: threading.Event) -> None:
        self._engine = asyncio.Lock()
        self._stop = stop
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_get(KV_EVENTS_PATH, self._kv_events)
        app.router.add_get(TOKENIZER_PATH + "/{digest}", self._tokenizer)
        app.router.add_post(PREWARM_PATH, self._prewarm)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/v1/completions", self._generate)
        app.router.add_post("/v1/chat/completions", self._generate)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        listener = socket.create_server((self.host, self.port), backlog=128)
        await web.SockSite(runner, listener).start()
        self.port = listener.getsockname()[1]
        self.url = f"http://{self.host}:{self.port}"
        ready.set()
        heartbeats = asyncio.create_task(self._heartbeats())
        await asyncio.to_thread(stop.wait)
        heartbeats.cancel()
        # What was accepted just now is known when the server closes, and closed with the rest. A server that
        # closes before trips asyncio: the connection is forgotten, and open until it is found as garbage.
        asyncio.get_running_loop().remove_reader(listener)
        await asyncio.sleep(0.01)
        await runner.cleanup()


def _dispatch_of(headers: Mapping[str, str]) -> tuple[str, int]:
    """The router's id and the number of its dispatch."""
    return headers.get(ROUTER_ID_HEADER, ""), int(headers.get(DISPATCH_HEADER, "0"))


@contextmanager
def running_stub(stub: StubWorker) -> Iterator[StubWorker]:
    """`stub` listening on loopback while the block lasts."""
    with served_thread(stub.serve, stub.uid):
        yield stub


@contextmanager
def running_stubs(count: int, **fields: Any) -> Iterator[list[StubWorker]]:
    """`count` stubs, `w0` and up, with the same `fields`."""
    with ExitStack() as stack:
        yield [stack.enter_context(running_stub(StubWorker(uid=f"w{n}", **fields))) for n in range(count)]


def _close(request: web.Request) -> None:
    """Cut the connection, as the kernel does for a killed process."""
    transport = request.transport
    assert transport is not None
    transport.abort()
