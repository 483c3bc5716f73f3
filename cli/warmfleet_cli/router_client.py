"""HTTP requests of the commands to a router: its URL, the client, and errors as `CliError`.

Bodies are read to a bound: the server is the one that the user names, and need not be a router.
"""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final

import httpx
import msgspec
import typer

from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_cli.local.state import choose_fleet
from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_contracts.names import API_KEY_VARIABLE, LOCAL_HOST, ROUTER_PORT
from warmfleet_runtime.answers import IDENTITY, AnswerError, Content, LineSplitter, refuse_compressed
from warmfleet_runtime.home import warmfleet_home

Url = Annotated[
    str | None,
    typer.Option("--url", help="Router, such as http://127.0.0.1:8080. Default: the local fleet's."),
]
ApiKey = Annotated[
    str, typer.Option(envvar=API_KEY_VARIABLE, show_envvar=True, help="API key, if the router requires one.")
]

MOST_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""Of a decision, a list of models or the tokens of a text."""
MOST_ERROR_BYTES: Final = 64 * 1024
"""Of an answer that is no success."""
MOST_LINE_BYTES: Final = 1024 * 1024
"""Of a stream: an event with its log probabilities has some kilobytes."""

_CONNECT_SECONDS: Final = 5.0
_READ_SECONDS: Final = 600.0
_MAX_ERROR_CHARS: Final = 2000


def router_url(url: str | None) -> str:
    """The router's URL: as given, or the running local fleet's, or the default address."""
    if url is not None:
        return url.rstrip("/").removesuffix("/v1")
    fleet = choose_fleet(warmfleet_home(), None)
    if fleet is not None and fleet.is_running:
        return fleet.urls[0]
    return f"http://{LOCAL_HOST}:{ROUTER_PORT}"


def router_client(url: str, api_key: str = "") -> httpx.Client:
    """A client for one router; loopback is never reached through a proxy."""
    key = {"authorization": f"Bearer {api_key}"} if api_key else {}
    is_local = httpx.URL(url).host in {LOCAL_HOST, "localhost", "::1"}
    timeout = httpx.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS)
    headers = {**IDENTITY, **key}
    return httpx.Client(base_url=url, headers=headers, timeout=timeout, trust_env=not is_local)


def unreachable(url: str, error: httpx.HTTPError) -> CliError:
    """The error for a router that does not answer, or closes the connection early."""
    reason = re.sub(r"^\[.*?\] ", "", str(error)).lower() or type(error).__name__
    return CliError(
        f"{url} does not answer: {reason}",
        advice="`warmfleet status` shows what runs; `warmfleet up` starts a fleet",
        exit_code=ExitCode.NOT_RUNNING,
    )


def refusal(status: int, body: bytes) -> CliError:
    """The error for a status other than 200, with the router's own message if it has one."""
    advice = f"${API_KEY_VARIABLE} is the key that this command sends" if status in {401, 403} else ""
    text = error_text(body) or f"the router answered {status}"
    return CliError(text, advice=advice, exit_code=ExitCode.REFUSED)


def error_text(body: bytes) -> str:
    """The message of an OpenAI error object; empty if it is none."""
    try:
        document = msgspec.json.decode(body)
    except UNDECODABLE:
        return ""
    error = document.get("error") if isinstance(document, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message[:_MAX_ERROR_CHARS] if isinstance(message, str) else ""


def get_body(client: httpx.Client, path: str, *, most_bytes: int = MOST_ANSWER_BYTES) -> bytes:
    """The body of the answer to `path`.

    Raises:
        CliError: no router answers, it returns an error, or more than `most_bytes`.
    """
    return ask_router(client, "GET", path, most_bytes=most_bytes)


def ask_router(
    client: httpx.Client, method: str, path: str, *, json: Any = None, most_bytes: int = MOST_ANSWER_BYTES
) -> bytes:
    """As `get_body`, with any method; `json` is the document to send."""
    try:
        with client.stream(method, path, json=json) as response:
            require_success(response)
            return read_body(response, most_bytes)
    except httpx.HTTPError as error:
        raise unreachable(str(client.base_url), error) from error


def require_success(response: httpx.Response) -> None:
    """Raise `refusal` with the body of a streamed response, unless its status is 200."""
    if response.status_code != httpx.codes.OK:
        raise refusal(response.status_code, read_body(response, MOST_ERROR_BYTES))


def get_json(client: httpx.Client, path: str, *, kind: Any = Any, most_bytes: int = MOST_ANSWER_BYTES) -> Any:
    """The document at `path`.

    With `kind` only the fields of that type are kept: objects of all others, which a server adds at will,
    take many times the memory of the body.

    Raises:
        CliError: as `get_body`, or the answer is no JSON.
        msgspec.ValidationError: it is JSON, but no `kind`.
    """
    body = get_body(client, path, most_bytes=most_bytes)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError:
        raise
    except UNDECODABLE:
        raise CliError(
            f"{client.base_url} answers, but is not a router", exit_code=ExitCode.REFUSED
        ) from None


def read_body(response: httpx.Response, most_bytes: int) -> bytes:
    """The whole body of a response that is streamed.

    Raises:
        CliError: it is longer, or compressed.
        httpx.HTTPError: the connection ends early.
    """
    with _refusals_of(response):
        refuse_compressed(response.headers)
        content = Content(most_bytes)
        for piece in response.iter_bytes():
            content.add(piece)
    return content.whole()


def read_lines(response: httpx.Response) -> Iterator[str]:
    """The lines of a response that is streamed, as they come, empty ones among them.

    Raises:
        CliError: a line is longer than `MOST_LINE_BYTES`, or the response is compressed.
        httpx.HTTPError: the connection ends early.
    """
    with _refusals_of(response):
        refuse_compressed(response.headers)
        splitter = LineSplitter(MOST_LINE_BYTES)
        for piece in response.iter_bytes():
            yield from map(_text, splitter.lines(piece))
    yield _text(splitter.rest())


async def read_lines_async(response: httpx.Response) -> AsyncIterator[str]:
    """As `read_lines`."""
    with _refusals_of(response):
        refuse_compressed(response.headers)
        splitter = LineSplitter(MOST_LINE_BYTES)
        async for piece in response.aiter_bytes():
            for line in splitter.lines(piece):
                yield _text(line)
    yield _text(splitter.rest())


async def read_beginning(response: httpx.Response, most_bytes: int) -> bytes:
    """As much of a body as there is, up to `most_bytes`.

    Raises:
        CliError: it is compressed.
        httpx.HTTPError: the connection ends early.
    """
    with _refusals_of(response):
        refuse_compressed(response.headers)
    content = bytearray()
    async for piece in response.aiter_bytes():
        content += piece
        if len(content) >= most_bytes:
            break
    return bytes(content[:most_bytes])


@contextmanager
def _refusals_of(response: httpx.Response) -> Iterator[None]:
    try:
        yield
    except AnswerError as error:
        raise CliError(f"{response.url} {error}", exit_code=ExitCode.REFUSED) from None


def _text(line: bytes) -> str:
    return line.decode(errors="replace")
