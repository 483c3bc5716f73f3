"""Workers without a model, all in this one process, for measuring what stands in front of them.

They speak the whole contract: hello with proof, snapshot and live frames, load reports, tokenizer, answer
headers with the hash of the last block. Prompts are encoded, hashed and matched against a resident set of a
fixed size, in which every new block replaces the oldest. An answer has its first token after
`--first-token-seconds` and then `--tokens-per-second`; sequences beyond `--seats` wait, first come first
served. A request for tokens is answered with an estimate. With `--restart-seconds` one worker after the other
begins a new epoch, as a worker that was restarted does, and sends its snapshot again.

    PYTHONPATH=benchmarks python -m harness.stub_fleet --endpoints-file FILE [--workers 4] [--blocks 100000]

writes the endpoints file that the router reads, and then a line on standard output.
"""

import argparse
import asyncio
import functools
import itertools
import secrets
import sys
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop

from harness.stub_seats import Progress, Seats, Speed
from warmfleet_contracts.cache.blocks import (
    BlockHash,
    CacheIdentity,
    block_hashes,
    block_root,
    cacheable_tokens,
)
from warmfleet_contracts.cache.kv_events import (
    BUSY_HEARTBEAT_SECONDS,
    COALESCE_SECONDS,
    Frame,
    Hello,
    LoadReport,
    PlainAnswer,
    StepTimeFit,
    encode_message,
    hello_proof,
)
from warmfleet_contracts.cache.resident import ResidentSet
from warmfleet_contracts.cache.worker_api import (
    CACHED_TOKENS_HEADER,
    DISPATCH_HEADER,
    KV_EVENTS_PATH,
    LAST_BLOCK_HEADER,
    NONCE_HEADER,
    POSITION_HEADER,
    PROMPT_TOKENS_HEADER,
    ROUTER_ID_HEADER,
    SALT_HEADER,
    TOKENIZER_PATH,
    PromptAssets,
)
from warmfleet_contracts.openai import ChatRequest, decode_chat_request, decode_completion_request
from warmfleet_contracts.prompts.encoder import PromptEncoder
from warmfleet_runtime.home import warmfleet_home
from warmfleet_runtime.http.listener import announce, bind
from warmfleet_worker.model_store.assets import load_prompt_assets
from warmfleet_worker.model_store.catalog import catalog_model_path

MODEL_NAME: Final = "stub"
CATALOG_MODEL_NAME: Final = "smollm2-135m-instruct"
BLOCK_TOKENS: Final = 16
IDENTITY: Final = CacheIdentity(b"stub-fleet-of-16")
MODEL_LENGTH_TOKENS: Final = 32_768
DEFAULT_TOKENS: Final = 16
CHAT_PATH: Final = "/v1/chat/completions"
TOKENIZE_PATHS: Final = ("/tokenize", "/detokenize")
MANY_SEATS: Final = 4096
BYTES_PER_TOKEN: Final = 4


def benchmark_assets() -> PromptAssets:
    """The catalog model's tokenizer; exits with advice if the model was not pulled."""
    folder = catalog_model_path(CATALOG_MODEL_NAME, warmfleet_home())
    if folder is None:
        sys.exit(f"the tokenizer is missing; fetch it: warmfleet model pull {CATALOG_MODEL_NAME}")
    return load_prompt_assets(folder)


class StubWorker:
    """One worker: its cache, its event stream, its answers."""

    def __init__(self, uid: str, encoder: PromptEncoder, blocks: int, speed: Speed) -> None:
        self.uid = uid
        self.token = secrets.token_hex(16)
        self._encoder = encoder
        self._speed = speed
        self._seats = Seats(speed.seats)
        self._restarts = 0
        self._admitted: dict[str, int] = {}
        self._open: Counter[str] = Counter()
        self._plain: list[Progress] = []
        fill = [BlockHash(secrets.token_bytes(16)) for _ in range(blocks)]
        self._resident = ResidentSet(uid, 1, fill)
        self._by_age = deque(fill)
        self._unsent: list[Frame] = []
        self._subscribers: set[asyncio.Queue[bytes | None]] = set()

    def restart(self) -> None:
        """Begin a new epoch with the same blocks; every subscriber must connect again."""
        self._restarts += 1
        self._resident.epoch = f"{self.uid}-{self._restarts}"
        self._unsent.clear()
        self._admitted.clear()
        for queue in self._subscribers:
            queue.put_nowait(None)

    async def publish(self) -> None:
        """Send changes to the subscribers every `COALESCE_SECONDS`, for as long as it runs."""
        loop = asyncio.get_running_loop()
        sent_seconds, sent_load = 0.0, LoadReport()
        while True:
            await asyncio.sleep(COALESCE_SECONDS)
            load = self._load()
            if load != sent_load or loop.time() - sent_seconds > BUSY_HEARTBEAT_SECONDS:
                sent_seconds, sent_load = loop.time(), load
                self._unsent.append(self._frame(load=load))
            content = b"".join(map(encode_message, self._unsent))
            self._unsent.clear()
            if content:
                for queue in self._subscribers:
                    queue.put_nowait(content)

    async def follow(self, writer: asyncio.StreamWriter, nonce: bytes) -> None:
        """Hello, snapshot, then every frame until the connection breaks."""
        proof = hello_proof(self.token.encode(), nonce=nonce, uid=self.uid, identity=IDENTITY)
        hello = Hello(
            uid=self.uid,
            identity=IDENTITY,
            block_size_tokens=BLOCK_TOKENS,
            window_tokens=0,
            epoch=self._resident.epoch,
            served_names=[MODEL_NAME],
            tokenizer_digest=self._encoder.tokenizer_digest,
            max_model_length_tokens=MODEL_LENGTH_TOKENS,
            proof=proof,
        )
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._subscribers.add(queue)
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
        for message in (hello, *self._resident.snapshot(self._load())):
            writer.write(encode_message(message))
        try:
            await writer.drain()
            while (content := await queue.get()) is not None:
                writer.write(content)
                await writer.drain()
            writer.close()
        finally:
            self._subscribers.discard(queue)

    async def answer(
        self,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """One answer of as many tokens as the request allows, until the client leaves."""
        is_chat = path == CHAT_PATH
        request = decode_chat_request(body) if is_chat else decode_completion_request(body)
        if isinstance(request, ChatRequest):
            token_ids, prompts = self._encoder.encode_chat(request.messages), 1
        else:
            prompt, prompts = request.prompts[0], len(request.prompts)
            token_ids = self._encoder.encode_text(prompt) if isinstance(prompt, str) else prompt
        answered = self._admit(token_ids, headers)
        count = request.max_output_tokens or DEFAULT_TOKENS
        sequences = prompts * request.n
        usage = {"prompt_tokens": len(token_ids), "completion_tokens": count * sequences}
        usage["total_tokens"] = sum(usage.values())
        progress = Progress(headers.get(ROUTER_ID_HEADER, ""), int(headers.get(DISPATCH_HEADER, "0")))
        now = asyncio.get_running_loop().time
        submitted = now()
        if not request.stream:
            self._plain.append(progress)
        self._open[progress.router_id] += 1
        try:
            async with self._seats.taken(sequences):
                progress.admitted_after_seconds = now() - submitted
                started = now() + self._speed.first_token_seconds
                for number in range(count):
                    due = started + number / self._speed.tokens_per_second
                    if (pause := due - now()) > 0:
                        await asyncio.sleep(pause)
                    if reader.at_eof():
                        raise ConnectionResetError
                    if not number:
                        progress.first_token_after_seconds = now() - submitted
                    progress.generated_tokens += sequences
                    if request.stream:
                        head = _head(STREAM_HEAD, answered) + (ROLE_EVENT if is_chat else b"")
                        writer.write((b"" if number else head) + TOKEN_EVENT[is_chat] * sequences)
                        await writer.drain()
        finally:
            self._open[progress.router_id] -= 1
            if not request.stream:
                self._plain.remove(progress)
        if request.stream:
            writer.write(_chunk({"choices": [], "usage": usage}) + END)
        else:
            choice = {"index": 0, "finish_reason": "length"}
            choice |= {"message": {"content": " word"}} if is_chat else {"text": " word"}
            document = {"id": "stub-0", "choices": [choice] * sequences, "usage": usage}
            _write_json(writer, document, {**answered, **progress.headers()})

    def _admit(self, token_ids: list[int], headers: Mapping[str, str]) -> dict[str, str]:
        """Take a prompt into the cache; the headers with what was found of it."""
        if router := headers.get(ROUTER_ID_HEADER):
            self._admitted[router] = max(self._admitted.get(router, 0), int(headers[DISPATCH_HEADER]))
        root = block_root(IDENTITY, salt=bytes.fromhex(headers.get(SALT_HEADER, "")))
        hashes = block_hashes(root, token_ids, BLOCK_TOKENS)
        run = sum(1 for _ in itertools.takewhile(self._resident.__contains__, hashes))
        cached = min(run * BLOCK_TOKENS, cacheable_tokens(len(token_ids), BLOCK_TOKENS))
        answered = {
            PROMPT_TOKENS_HEADER: str(len(token_ids)),
            CACHED_TOKENS_HEADER: str(cached),
            POSITION_HEADER: f"{self._resident.epoch}:{self._resident.seq}",
        }
        if hashes:
            answered[LAST_BLOCK_HEADER] = hashes[-1].hex()
        stored = [block_hash for block_hash in hashes[run:] if block_hash not in self._resident]
        if stored and len(stored) <= len(self._by_age):
            removed = [self._by_age.popleft() for _ in stored]
            self._by_age.extend(stored)
            self._resident.change(self._resident.seq + 1, stored=stored, removed=removed)
            self._unsent.append(self._frame(stored=stored, removed=removed))
        return answered

    def _frame(self, **fields: Any) -> Frame:
        return Frame(
            epoch=self._resident.epoch, seq=self._resident.seq, digest=self._resident.digest, **fields
        )

    def _load(self) -> LoadReport:
        plain: dict[str, list[PlainAnswer]] = {}
        for progress in self._plain:
            if progress.generated_tokens:
                plain.setdefault(progress.router_id, []).append(progress.report())
        return LoadReport(
            running_sequences=self._seats.running,
            waiting_sequences=self._seats.waiting,
            max_running_sequences=self._speed.seats,
            total_blocks=4 * len(self._resident) + MANY_SEATS * 256,
            cached_blocks=len(self._resident),
            step_time=StepTimeFit(
                base_seconds=max(self._speed.first_token_seconds, 0.001),
                per_prefill_token_seconds=1e-5,
                samples=100,
            ),
            admitted_dispatches=dict(self._admitted),
            open_dispatches=dict(+self._open),
            plain_answers=plain,
        )


async def serve_connection(
    worker: StubWorker, assets: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer the requests of one connection, one after the other."""
    try:
        while True:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            path = lines[0].split(" ")[1].partition("?")[0]
            fields = (line.partition(":") for line in lines[1:] if line)
            headers = {name.lower(): value.strip() for name, _, value in fields}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            if path == KV_EVENTS_PATH:
                await worker.follow(writer, bytes.fromhex(headers[NONCE_HEADER]))
                return
            if path.startswith(TOKENIZER_PATH):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(assets) + assets)
            elif headers.get("authorization") != f"Bearer {worker.token}":
                writer.write(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n")
            elif path in TOKENIZE_PATHS:
                _write_json(writer, {"count": len(body) // BYTES_PER_TOKEN, "tokens": []})
            else:
                await worker.answer(path, headers, body, reader, writer)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def serve(options: argparse.Namespace) -> None:
    """All workers, until the process ends."""
    assets = benchmark_assets()
    encoder = PromptEncoder.from_assets(assets)
    encoded_assets = msgspec.msgpack.encode(assets)
    endpoints: list[dict[str, str]] = []
    workers: list[StubWorker] = []
    speed = Speed(options.seats, options.first_token_seconds, options.tokens_per_second)
    async with asyncio.TaskGroup() as tasks:
        for number in range(options.workers):
            uid = f"stub-{number}"
            worker = StubWorker(uid, encoder, options.blocks // options.workers, speed)
            workers.append(worker)
            listener = bind("127.0.0.1", 0)
            handler = functools.partial(serve_connection, worker, encoded_assets)
            server = await asyncio.start_server(handler, sock=listener)
            tasks.create_task(server.serve_forever())
            tasks.create_task(worker.publish())
            host, port = listener.getsockname()[:2]
            endpoints.append({"uid": uid, "url": f"http://{host}:{port}", "token": worker.token})
        options.endpoints_file.write_bytes(msgspec.json.encode(endpoints))
        announce(listener, "stub-fleet")
        if options.restart_seconds:
            for worker in itertools.cycle(workers):
                await asyncio.sleep(options.restart_seconds)
                worker.restart()


def _write_json(
    writer: asyncio.StreamWriter, document: dict[str, Any], headers: Mapping[str, str] = {}
) -> None:
    content = msgspec.json.encode(document)
    writer.write(_head(JSON_HEAD, {**headers, "content-length": str(len(content))}) + content)


def _head(first: bytes, headers: Mapping[str, str]) -> bytes:
    return first + "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode() + b"\r\n"


def _chunk(document: dict[str, Any]) -> bytes:
    event = b"data: " + msgspec.json.encode({"id": "stub-0", "object": "chunk", **document}) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(event), event)


STREAM_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
JSON_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
ROLE_EVENT: Final = _chunk({"choices": [{"index": 0, "delta": {"role": "assistant"}}]})
TOKEN_EVENT: Final = {
    True: _chunk({"choices": [{"index": 0, "delta": {"content": " word"}, "finish_reason": None}]}),
    False: _chunk({"choices": [{"index": 0, "text": " word", "finish_reason": None}]}),
}
END: Final = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--endpoints-file", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=100_000, help="resident blocks, over all workers")
    parser.add_argument("--tokens-per-second", type=float, default=5.0, help="of every answer")
    parser.add_argument("--first-token-seconds", type=float, default=0.0)
    parser.add_argument("--seats", type=int, default=MANY_SEATS, help="sequences that a worker runs at once")
    parser.add_argument("--restart-seconds", type=float, default=0.0, help="between two; 0: none")
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
