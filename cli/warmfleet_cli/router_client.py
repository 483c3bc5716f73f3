"""HTTP requests of the commands to a router: its URL, the client, and errors as `CliError`."""

import re
from typing import Annotated, Any, Final

import httpx
import msgspec
import typer

from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_cli.local.state import choose_fleet
from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_contracts.names import API_KEY_VARIABLE, LOCAL_HOST, ROUTER_PORT
from warmfleet_runtime.home import warmfleet_home

Url = Annotated[
    str | None,
    typer.Option("--url", help="Router, such as http://127.0.0.1:8080. Default: the local fleet's."),
]
ApiKey = Annotated[
    str, typer.Option(envvar=API_KEY_VARIABLE, show_envvar=True, help="API key, if the router requires one.")
]

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
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    is_local = httpx.URL(url).host in {LOCAL_HOST, "localhost", "::1"}
    timeout = httpx.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS)
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


def get_body(client: httpx.Client, path: str) -> bytes:
    """The body of the answer to `path`.

    Raises:
        CliError: no router answers, or it returns an error.
    """
    try:
        answer = client.get(path)
    except httpx.HTTPError as error:
        raise unreachable(str(client.base_url), error) from error
    if answer.status_code != 200:
        raise refusal(answer.status_code, answer.content)
    return answer.content


def get_json(client: httpx.Client, path: str) -> Any:
    """The document at `path`.

    Raises:
        CliError: as `get_body`, or the answer is no JSON.
    """
    body = get_body(client, path)
    try:
        return msgspec.json.decode(body)
    except UNDECODABLE:
        raise CliError(
            f"{client.base_url} answers, but is not a router", exit_code=ExitCode.REFUSED
        ) from None
