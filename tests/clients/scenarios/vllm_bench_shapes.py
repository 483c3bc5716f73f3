"""What `vllm bench serve` sends to an OpenAI server, and how it judges the answers.

After vllm/benchmarks/serve.py and vllm/benchmarks/lib/endpoint_request_func.py at commit 02cfb53; vLLM
itself is too heavy to install for its client alone. Like there, aiohttp sends, `--max-concurrency` at a
time. There a request is successful if its status is 200 and a chunk with choices came; here its usage must
give the exact number of tokens, too, and the end marker must have come.
"""

import asyncio
import codecs
import json
import random
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from suite import Suite, target

SUITE = Suite()
REQUESTS: Final = 500
"""Per endpoint."""
MAX_CONCURRENCY: Final = 32
OUTPUT_TOKENS: Final = 6
SAMPLING: Final = (
    {},
    {"temperature": 0.0},
    {"temperature": 0.7, "top_p": 0.95, "top_k": 20, "min_p": 0.01},
    {"frequency_penalty": 0.1, "presence_penalty": 0.1, "repetition_penalty": 1.05},
)
"""What the options --temperature, --top-p and so on add to every body."""


@dataclass(frozen=True)
class Bench:
    """A session as the benchmark opens it; `url` is the server's root."""

    session: aiohttp.ClientSession
    url: str
    model: str


@dataclass
class Outcome:
    """What the benchmark remembers of one answer."""

    success: bool = False
    done: bool = False
    output_tokens: int = 0
    prompt_tokens: int = 0
    text: str = ""
    error: str = ""


class EventBuffer:
    """Cuts a body into events as the benchmark does.

    Every read is stripped first, which may take an event's blank line: what is left over counts as an event
    as soon as it is whole JSON.
    """

    def __init__(self) -> None:
        self._left = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def feed(self, read: bytes) -> list[str]:
        """The events that are whole now, without their field name; comments are left out."""
        *events, self._left = (self._left + self._decoder.decode(read.strip())).split("\n\n")
        if self._left.startswith("data: ") and _is_whole(self._left[6:].strip()):
            events.append(self._left)
            self._left = ""
        events = [event.strip() for event in events]
        return [event.removeprefix("data: ") for event in events if event and not event.startswith(":")]


def _is_whole(event: str) -> bool:
    if event == "[DONE]":
        return True
    try:
        json.loads(event)
    except json.JSONDecodeError:
        return False
    return True


async def ask(bench: Bench, path: str, body: dict[str, Any], headers: dict[str, str]) -> Outcome:
    """Send one request and judge its answer."""
    outcome = Outcome()
    async with bench.session.post(bench.url + path, json=body, headers=headers) as response:
        if response.status != 200:
            outcome.error = f"{response.status} {await response.text()}"
            return outcome
        async for event in _events(response):
            if event == "[DONE]":
                outcome.done = True
                continue
            data = json.loads(event)
            if choices := data.get("choices"):
                outcome.success = True
                chat = "chat" in path
                outcome.text += (choices[0]["delta"].get("content") if chat else choices[0].get("text")) or ""
            elif usage := data.get("usage"):
                outcome.output_tokens = usage.get("completion_tokens")
                outcome.prompt_tokens = usage.get("prompt_tokens")
    return outcome


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[str]:
    buffer = EventBuffer()
    async for read in response.content.iter_any():
        for event in buffer.feed(read):
            yield event


async def ask_all(bench: Bench, path: str, bodies: list[dict[str, Any]]) -> list[Outcome]:
    """Every body, with the request ids that the benchmark gives; the outcomes in the same order."""
    slots = asyncio.Semaphore(MAX_CONCURRENCY)
    prefix = f"bench-{uuid.uuid4().hex[:8]}-"

    async def one(index: int, body: dict[str, Any]) -> Outcome:
        async with slots:
            return await ask(bench, path, body, {"x-request-id": f"{prefix}{index}"})

    return await asyncio.gather(*(one(index, body) for index, body in enumerate(bodies)))


def common(bench: Bench, index: int) -> dict[str, Any]:
    """The fields of both endpoints."""
    return {
        "model": bench.model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        **SAMPLING[index % len(SAMPLING)],
    }


def random_text(draw: random.Random) -> str:
    return "".join(draw.choices("abcdefg opqrstuvxyz", k=draw.randint(20, 120)))


def judge(outcomes: list[Outcome]) -> None:
    failed = [
        outcome
        for outcome in outcomes
        if not (outcome.success and outcome.done and outcome.output_tokens == OUTPUT_TOKENS)
        or not outcome.prompt_tokens
    ]
    assert len(outcomes) == REQUESTS
    assert not failed, f"{len(failed)} failed, such as {failed[:2]}"


@SUITE.scenario(requests=1)
async def the_first_model_is_found(bench: Bench) -> None:
    async with bench.session.get(f"{bench.url}/v1/models") as response:
        first = (await response.json())["data"][0]
    assert (first["id"], first["root"]) == (bench.model, bench.model)


@SUITE.scenario(requests=2)
async def prompts_are_aligned_with_the_servers_tokenizer(bench: Bench) -> None:
    text = random_text(random.Random(1))
    body = {"model": bench.model, "prompt": text, "add_special_tokens": False}
    async with bench.session.post(f"{bench.url}/tokenize", json=body) as response:
        tokens = (await response.json())["tokens"]
    body = {"model": bench.model, "tokens": tokens[:10]}
    async with bench.session.post(f"{bench.url}/detokenize", json=body) as response:
        prompt = (await response.json())["prompt"]
    assert prompt
    assert text.startswith(prompt)


@SUITE.scenario(requests=0)  # metrics are not in the access log
async def metrics_without_speculation_are_read(bench: Bench) -> None:
    async with bench.session.get(f"{bench.url}/metrics") as response:
        lines = (await response.text()).split("\n")
    assert response.status == 200
    assert not [line for line in lines if line.startswith(("vllm:spec_decode", "vllm:diffusion"))]


@SUITE.scenario(requests=REQUESTS)
async def completions_all_succeed(bench: Bench) -> None:
    """Texts, and the token ids that datasets with recorded traces send."""
    draw = random.Random(2)
    bodies = []
    for index in range(REQUESTS):
        ids = [draw.randrange(4, 260) for _ in range(draw.randint(10, 100))]
        bodies.append(
            {
                "prompt": ids if index % 5 == 0 else random_text(draw),
                "repetition_penalty": 1.0,
                "max_tokens": OUTPUT_TOKENS,
                "logprobs": index % 3 or None,  # --logprobs
                **common(bench, index),
            }
        )
    judge(await ask_all(bench, "/v1/completions", bodies))


@SUITE.scenario(requests=REQUESTS)
async def chats_all_succeed(bench: Bench) -> None:
    """One turn of text parts, and the conversations that datasets bring along."""
    draw = random.Random(3)
    bodies = []
    for index in range(REQUESTS):
        parts = [{"role": "user", "content": [{"type": "text", "text": random_text(draw)}]}]
        turns = [
            {"role": "system", "content": "You are terse."},
            {"role": "user", "content": random_text(draw)},
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": random_text(draw)},
        ]
        messages = turns if index % 5 == 0 else parts
        bodies.append({"messages": messages, "max_completion_tokens": OUTPUT_TOKENS, **common(bench, index)})
    judge(await ask_all(bench, "/v1/chat/completions", bodies))


async def main() -> None:
    given = target()
    connector = aiohttp.TCPConnector(
        limit=MAX_CONCURRENCY, limit_per_host=MAX_CONCURRENCY, ttl_dns_cache=300, keepalive_timeout=60
    )
    headers = {"Authorization": f"Bearer {given.key}"}  # from $OPENAI_API_KEY there
    async with aiohttp.ClientSession(connector=connector, trust_env=True, headers=headers) as session:
        await SUITE.run(Bench(session, given.base_url.removesuffix("/v1"), given.model))


if __name__ == "__main__":
    asyncio.run(main())
