"""`warmfleet chat`: chat with a model, and show the cached prompt tokens and latency of each answer."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

import httpx
import msgspec
import typer

from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_cli.output import (
    OutputFormat,
    OutputOption,
    make_console,
    print_error,
    print_json,
    print_line,
    print_text,
)
from warmfleet_cli.router_client import (
    ApiKey,
    Url,
    error_text,
    get_json,
    read_lines,
    require_success,
    router_client,
    router_url,
    unreachable,
)
from warmfleet_contracts.cache.worker_api import DECISION_HEADER
from warmfleet_contracts.decoding import UNDECODABLE

MAX_INPUT_CHARS: Final = 1024 * 1024


class ChatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one turn, its usage and its latency; `--output json` prints it."""

    text: str
    finish_reason: str | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    first_token_seconds: float | None
    """From sending the request to the first text; None for an empty answer."""
    total_seconds: float
    decision: str
    """Id for `warmfleet why`; empty if the response has no x-warmfleet-decision header."""


def chat(
    *,
    model: Annotated[
        str | None, typer.Option("--model", help="Model name. Default: the first one served.")
    ] = None,
    once: Annotated[
        str | None, typer.Option("--once", help="Send this message, print the answer and exit.")
    ] = None,
    system: Annotated[str | None, typer.Option("--system", help="System message.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Maximum tokens per answer.")] = None,
    temperature: Annotated[
        float, typer.Option(min=0.0, max=2.0, help="Sampling temperature; 0 is greedy.")
    ] = 0.0,
    url: Url = None,
    api_key: ApiKey = "",
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Chat with a model; each answer ends with its cached prompt tokens and time to first token."""
    base_url = router_url(url)
    with router_client(base_url, api_key) as client:
        conversation = _Conversation(
            client,
            model or _first_model(client),
            system=system,
            max_tokens=max_tokens,
            temperature=temperature,
        )
        if once is not None:
            _answer_once(conversation, once, output)
        elif output is OutputFormat.JSON:
            for line in _lines(""):
                print_json(conversation.ask(line, lambda _: None))
        else:
            _talk(conversation)


class _Conversation:
    """The messages so far; `ask` adds a turn."""

    def __init__(
        self,
        client: httpx.Client,
        model: str,
        *,
        system: str | None,
        max_tokens: int | None,
        temperature: float,
    ) -> None:
        self.model = model
        self._client = client
        self._messages = [{"role": "system", "content": system}] if system else []
        self._options: dict[str, Any] = {"temperature": temperature}
        if max_tokens is not None:
            self._options["max_tokens"] = max_tokens

    def ask(self, text: str, on_text: Callable[[str], None]) -> ChatAnswer:
        """Send one turn and stream its answer to `on_text`. A failed turn is not added to the conversation.

        Raises:
            CliError: no router answers, it returns an error, or the stream ends early.
        """
        messages = [*self._messages, {"role": "user", "content": text}]
        answer = self._stream(messages, on_text)
        self._messages = [*messages, {"role": "assistant", "content": answer.text}]
        return answer

    def _stream(self, messages: list[dict[str, str]], on_text: Callable[[str], None]) -> ChatAnswer:
        body = {
            "model": self.model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._options,
        }
        started = time.monotonic()
        first_token_seconds: float | None = None
        pieces: list[str] = []
        finish_reason: str | None = None
        usage: dict[str, Any] = {}
        try:
            with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
                require_success(response)
                decision = response.headers.get(DECISION_HEADER, "")
                for chunk in _chunks(read_lines(response)):
                    usage = chunk.get("usage") or usage
                    for choice in chunk.get("choices", ()):
                        finish_reason = choice.get("finish_reason") or finish_reason
                        if piece := choice.get("delta", {}).get("content"):
                            if first_token_seconds is None:
                                first_token_seconds = time.monotonic() - started
                            pieces.append(piece)
                            on_text(piece)
        except httpx.HTTPError as error:
            raise unreachable(str(self._client.base_url), error) from error
        return ChatAnswer(
            text="".join(pieces),
            finish_reason=finish_reason,
            prompt_tokens=usage.get("prompt_tokens", 0),
            cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
            completion_tokens=usage.get("completion_tokens", 0),
            first_token_seconds=first_token_seconds,
            total_seconds=time.monotonic() - started,
            decision=decision,
        )


def _chunks(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects of a completion stream, up to `[DONE]`.

    Raises:
        CliError: the stream holds an error or invalid data, or ends early.
    """
    for line in lines:
        if not line.startswith("data:"):
            continue
        text = line.removeprefix("data:").strip()
        if text == "[DONE]":
            return
        try:
            chunk = msgspec.json.decode(text, type=dict[str, Any])
        except UNDECODABLE:
            raise CliError("the response is not a completion stream", exit_code=ExitCode.REFUSED) from None
        if "error" in chunk:
            raise CliError(
                error_text(text.encode()) or "the stream ended with an error", exit_code=ExitCode.REFUSED
            )
        yield chunk
    raise CliError("the stream ended without [DONE]", exit_code=ExitCode.REFUSED)


def _first_model(client: httpx.Client) -> str:
    models = get_json(client, "/v1/models").get("data", [])
    if not models:
        raise CliError(
            "no model is served yet",
            advice="`warmfleet status` shows the workers",
            exit_code=ExitCode.NOT_RUNNING,
        )
    return str(models[0]["id"])


def _answer_once(conversation: _Conversation, text: str, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(conversation.ask(text, lambda _: None))
        return
    answer = conversation.ask(text, print_text)
    print_text("\n")
    # stdout holds the answer alone, so that it can be piped.
    print_line(make_console(stderr=True), summary(answer), style="dim")


def _talk(conversation: _Conversation) -> None:
    console = make_console()
    print_line(console, f"{conversation.model}. An empty line or Ctrl-D ends the conversation.", style="dim")
    for line in _lines("> "):
        try:
            answer = conversation.ask(line, print_text)
        except KeyboardInterrupt:
            print_text("\n")
            console.print("(interrupted; this turn is discarded)", style="dim")
        except CliError as error:
            print_text("\n")
            if not sys.stdin.isatty():
                raise
            print_error(error)
        else:
            print_text("\n")
            print_line(console, summary(answer), style="dim")


def _lines(prompt: str) -> Iterator[str]:
    """What the user types, until an empty line or the end."""
    is_terminal = sys.stdin.isatty()
    while True:
        try:
            line = input(prompt if is_terminal else "")
        except EOFError:
            return
        if not line.strip():
            return
        yield line[:MAX_INPUT_CHARS]


def summary(answer: ChatAnswer) -> str:
    """One line: `[48 of 61 prompt tokens cached, first token after 0.21 s, 17 tokens at 14.2/s]`."""
    parts = [f"{answer.cached_tokens} of {answer.prompt_tokens} prompt tokens cached"]
    if answer.first_token_seconds is not None:
        parts.append(f"first token after {answer.first_token_seconds:.2f} s")
        decoding = answer.total_seconds - answer.first_token_seconds
        rate = f" at {(answer.completion_tokens - 1) / decoding:.1f}/s" if decoding > 0.0 else ""
        parts.append(f"{answer.completion_tokens} tokens{rate if answer.completion_tokens > 1 else ''}")
    if answer.decision:
        parts.append(f"warmfleet why {answer.decision}")
    return f"[{', '.join(parts)}]"
