"""`warmfleet record`: prints what a router was asked last, as a trace for `warmfleet simulate`."""

from typing import Annotated, Final

import httpx
import msgspec
import typer

from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_cli.output import make_console, print_text
from warmfleet_cli.router_client import ApiKey, Url, get_json, router_client, router_url
from warmfleet_simulator.traces.recorded import RecordedRequest

MOST_DECISIONS: Final = 4096
"""That a router returns at once."""
MOST_DECISIONS_BYTES: Final = MOST_DECISIONS * 16 * 1024
"""A decision has at most about 3 KiB of the prompt's prefix, and 300 bytes for each of 16 candidates."""


class _Decision(msgspec.Struct, frozen=True):
    """The fields of a `RecordedRequest`; a request that is open, or got no answer, has no output."""

    decided_at: float
    prompt_tokens: int
    output_tokens: int | None = None
    block_size_tokens: int | None = None
    prefix: str | None = None
    total_ms: float | None = None


class _Decisions(msgspec.Struct, frozen=True):
    decisions: list[_Decision]


def record(
    *,
    limit: Annotated[
        int, typer.Option(min=1, max=MOST_DECISIONS, help="Of the newest requests.")
    ] = MOST_DECISIONS,
    url: Url = None,
    api_key: ApiKey = "",
) -> None:
    """Print a router's last requests as a trace, oldest first: one JSON object per line.

    It has arrivals, numbers of tokens and which prompts share a prefix, but no text and no tenant.
    """
    with router_client(router_url(url), api_key) as client:
        decisions = _decisions(client, limit)
    answered = sorted(filter(None, map(_request, decisions)), key=lambda request: request.decided_at)
    print_text("".join(msgspec.json.encode(request).decode() + "\n" for request in answered))
    if left_out := len(decisions) - len(answered):
        console = make_console(stderr=True)
        console.print(f"{left_out} of {len(decisions)} requests are left out: they run, or got no answer")


def _decisions(client: httpx.Client, limit: int) -> list[_Decision]:
    path = f"/internal/decisions?limit={limit}"
    try:
        answer: _Decisions = get_json(client, path, kind=_Decisions, most_bytes=MOST_DECISIONS_BYTES)
    except msgspec.ValidationError as error:
        raise CliError(
            f"the router's decisions are not in the expected format: {error}", exit_code=ExitCode.REFUSED
        ) from None
    return answer.decisions


def _request(decision: _Decision) -> RecordedRequest | None:
    if decision.total_ms is None or not decision.output_tokens or not decision.prompt_tokens:
        return None
    return RecordedRequest(
        decided_at=decision.decided_at,
        prompt_tokens=decision.prompt_tokens,
        output_tokens=decision.output_tokens,
        block_size_tokens=decision.block_size_tokens,
        prefix=decision.prefix,
    )
