"""One streaming completion, measured at the client: time to first token, and usage."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx
import msgspec

from warmfleet_cli.errors import CliError
from warmfleet_cli.router_client import read_beginning, read_lines_async
from warmfleet_contracts.cache.worker_api import REQUEST_ID_HEADER
from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_runtime.answers import IDENTITY

_DATA: Final = "data: "
_DONE: Final = "[DONE]"
_QUOTED_BYTES: Final = 300
"""Of a refusal."""


@dataclass(frozen=True, slots=True)
class Question:
    """One completion request; `ask` sends it. The prompt is token ids, so that its length is exact."""

    request_id: str
    model: str
    token_ids: Sequence[int]
    output_tokens: int

    def body(self) -> dict[str, Any]:
        """The request body: greedy, exactly `output_tokens` long, with usage at the end."""
        return {
            "model": self.model,
            "prompt": list(self.token_ids),
            "max_tokens": self.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one question: its latency and usage, or an error."""

    request_id: str
    error: str = ""
    """Empty for a success: status 200, a complete stream, and exactly the requested number of tokens."""
    first_token_seconds: float = math.nan
    """From the moment the question was due, so that delays of the client count."""
    total_seconds: float = math.nan
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    @property
    def succeeded(self) -> bool:
        return not self.error


class _PromptDetails(msgspec.Struct):
    cached_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _PromptDetails = msgspec.field(default_factory=_PromptDetails)


class _Chunk(msgspec.Struct):
    choices: list[Any] = []
    usage: _Usage | None = None
    error: dict[str, Any] | None = None


_chunk_decoder = msgspec.json.Decoder(_Chunk)


async def ask(
    client: httpx.AsyncClient, base_url: str, question: Question, *, due: float | None = None
) -> Answer:
    """Send `question` and read its stream to the end. Failures are answers with `error` set.

    `due` is the moment on the running loop's clock from which times count; None means now.
    """
    clock = asyncio.get_running_loop().time
    start = clock() if due is None else due
    first_token = math.nan
    usage: _Usage | None = None
    done = False
    try:
        async with client.stream(
            "POST",
            f"{base_url}/v1/completions",
            json=question.body(),
            headers={REQUEST_ID_HEADER: question.request_id},
        ) as response:
            if response.status_code != httpx.codes.OK:
                detail = (await read_beginning(response, _QUOTED_BYTES)).decode(errors="replace")
                return Answer(question.request_id, error=f"status {response.status_code}: {detail}")
            async for line in read_lines_async(response):
                if not line.startswith(_DATA):
                    continue
                payload = line[len(_DATA) :]
                if payload == _DONE:
                    done = True
                    break
                chunk = _chunk_decoder.decode(payload)
                if chunk.error is not None:
                    return Answer(question.request_id, error=f"stream: {chunk.error}")
                if chunk.choices and math.isnan(first_token):
                    first_token = clock() - start
                usage = chunk.usage or usage
    except CliError as error:
        return Answer(question.request_id, error=str(error))
    except (httpx.HTTPError, *UNDECODABLE) as error:
        return Answer(question.request_id, error=f"{type(error).__name__}: {error}")
    if not done or usage is None:
        return Answer(question.request_id, error="stream ended without usage and [DONE]")
    return Answer(
        question.request_id,
        error=_shortfall(question, usage),
        first_token_seconds=first_token,
        total_seconds=clock() - start,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.prompt_tokens_details.cached_tokens,
        output_tokens=usage.completion_tokens,
    )


def _shortfall(question: Question, usage: _Usage) -> str:
    if usage.prompt_tokens != len(question.token_ids):
        return f"prompt counted as {usage.prompt_tokens} tokens instead of {len(question.token_ids)}"
    if usage.completion_tokens != question.output_tokens:
        return f"{usage.completion_tokens} output tokens instead of {question.output_tokens}"
    return ""


def benchmark_client() -> httpx.AsyncClient:
    """A client without a connection limit, so that it queues no request itself, and without proxies."""
    return httpx.AsyncClient(
        headers=dict(IDENTITY),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        timeout=httpx.Timeout(120.0, connect=5.0),
        trust_env=False,
    )
