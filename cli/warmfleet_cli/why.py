"""`warmfleet why`: shows why the router sent a request to its worker.

The types read the JSON of a router that may have another version than this command. They name only the fields
that are printed, so the router's own records are not used here.
"""

from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer
from rich.console import Console

from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_cli.output import OutputFormat, OutputOption, make_console, print_json, print_line, print_table
from warmfleet_cli.router_client import ApiKey, Url, get_json, router_client, router_url


class CandidateView(msgspec.Struct, frozen=True, kw_only=True):
    """One worker that was considered, with the terms of its cost."""

    endpoint: str
    score: float
    precise: bool
    cached_tokens: int
    pending_tokens: int
    uncached_tokens: int
    wait_ms: float
    prefill_ms: float
    base_ms: float
    externality_ms: float
    later_ms: float = 0.0
    """Of a router of the release before, 0."""
    total_ms: float
    running_sequences: int
    waiting_sequences: int


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """One dispatch of the request."""

    endpoint: str
    reason: str
    runner_up: str | None
    candidates: list[CandidateView]
    candidate_count: int
    not_considered: dict[str, str] = {}
    predicted_prompt_tokens: int
    predicted_cached_tokens: int
    actual_prompt_tokens: int | None
    actual_cached_tokens: int | None
    difference: str
    missed_tokens: dict[str, int] | None = None
    """By cause; of a router of the release before, None."""
    first_byte_after_ms: float | None
    status: int | None
    error: str | None


class RequestView(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of the request, present before its first dispatch."""

    id: str
    request_id: str
    path: str
    model: str
    outcome: str
    tenant: str = "anonymous"
    priority: int = 0
    held_ms: float | None = None
    held_behind: int | None = None
    held_because: str = ""


class DecisionView(AttemptView, frozen=True, kw_only=True):
    """The last dispatch, with the fields of the whole decision; absent before the first dispatch."""

    policy: str
    mode: str
    decision_ms: float
    outcome: str
    total_ms: float | None
    retried: list[AttemptView]


def why(
    identifier: Annotated[
        str,
        typer.Argument(metavar="ID", help="Decision id (x-warmfleet-decision) or request id (x-request-id)."),
    ],
    *,
    url: Url = None,
    api_key: ApiKey = "",
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Explain a routing decision: the candidates, their cached tokens and cost, and the result."""
    with router_client(router_url(url), api_key) as client:
        document = get_json(client, f"/debug/decisions/{quote(identifier, safe='')}")
    if output is OutputFormat.JSON:
        print_json(document)
        return
    try:
        request = msgspec.convert(document, RequestView)
        decision = msgspec.convert(document, DecisionView) if "endpoint" in document else None
    except msgspec.ValidationError as error:
        raise CliError(
            f"the router's decision is not in the expected format: {error}",
            advice="--output json prints it unchanged",
            exit_code=ExitCode.REFUSED,
        ) from None
    console = make_console()
    print_request(console, request)
    if decision is None:
        print_line(console, f"not sent to any worker; outcome {request.outcome}")
    else:
        print_decision(console, decision)


def print_request(console: Console, request: RequestView) -> None:
    """The request's tenant and ids, and how long it waited in the router for capacity."""
    print_line(
        console,
        f"{request.id}  {request.path}  model {request.model}  tenant {request.tenant}"
        f"  request {request.request_id}",
    )
    if request.held_behind is not None:
        waited = "is held" if request.held_ms is None else f"was held for {request.held_ms:.0f} ms"
        print_line(
            console,
            f"{waited} at priority {request.priority}, behind {request.held_behind}: {request.held_because}",
        )


def print_decision(console: Console, decision: DecisionView) -> None:
    """The choice, the table of candidates, and the predicted and actual number of cached tokens."""
    for attempt in decision.retried:
        failed = attempt.error or f"status {attempt.status}"
        print_line(console, f"tried {attempt.endpoint} first: {failed}")
    print_line(
        console,
        f"{decision.policy} chose {decision.endpoint} ({decision.reason})"
        f" among {decision.candidate_count} in {decision.decision_ms:.1f} ms; {decision.mode}",
    )
    console.print()
    columns = [
        "",
        "WORKER",
        ">CACHED",
        ">PENDING",
        ">TO COMPUTE",
        ">WAIT",
        ">PREFILL",
        ">BASE",
        ">OTHERS",
        ">LATER",
        ">COST",
    ]
    print_table(
        console,
        [*columns, ">RUNNING", ">WAITING"],
        [_row(decision, candidate) for candidate in decision.candidates],
    )
    hidden = decision.candidate_count - len(decision.candidates)
    if hidden > 0:
        print_line(console, f"   and {hidden} more")
    for uid, reason in decision.not_considered.items():
        print_line(console, f"   not considered: {uid}, {reason}")
    console.print("   tokens; milliseconds. * chosen, + runner-up, ~ cache not known block by block")
    console.print("   OTHERS: what those that run wait longer; LATER: the same of those that will come")
    console.print()
    console.print(
        f"predicted  {decision.predicted_cached_tokens} of {decision.predicted_prompt_tokens} tokens cached"
    )
    print_line(console, f"actual     {_actual(decision)}")
    print_line(console, f"outcome    {_outcome(decision)}")


def _row(decision: DecisionView, candidate: CandidateView) -> list[str]:
    mark = {decision.endpoint: "*", decision.runner_up: "+"}.get(candidate.endpoint, "")
    times = (
        candidate.wait_ms,
        candidate.prefill_ms,
        candidate.base_ms,
        candidate.externality_ms,
        candidate.later_ms,
        candidate.total_ms,
    )
    return [
        mark + ("" if candidate.precise else "~"),
        candidate.endpoint,
        str(candidate.cached_tokens),
        str(candidate.pending_tokens),
        str(candidate.uncached_tokens),
        *(f"{milliseconds:.1f}" for milliseconds in times),
        str(candidate.running_sequences),
        str(candidate.waiting_sequences),
    ]


def _actual(decision: DecisionView) -> str:
    if decision.actual_cached_tokens is None:
        return "not known (yet)"
    difference = {"none": "as predicted"}.get(decision.difference, decision.difference.replace("_", " "))
    missed = [f"{tokens} {cause}" for cause, tokens in (decision.missed_tokens or {}).items() if tokens]
    return (
        f"{decision.actual_cached_tokens} of {decision.actual_prompt_tokens} tokens cached: {difference}"
        + (f"; missed: {', '.join(missed)}" if missed else "")
    )


def _outcome(decision: DecisionView) -> str:
    parts: list[Any] = [decision.outcome]
    if decision.first_byte_after_ms is not None:
        parts.append(f"first byte after {decision.first_byte_after_ms:.0f} ms")
    if decision.total_ms is not None:
        parts.append(f"{decision.total_ms:.0f} ms in all")
    return ", ".join(parts)
