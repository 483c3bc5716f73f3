"""The text of `warmfleet top`. Pure: a view in, lines out."""

from collections.abc import Sequence
from typing import Final

from warmfleet_cli.output import printable, table_lines
from warmfleet_cli.top.views import ModelView, Percentiles, ReplicaView
from warmfleet_operator.scaling.advice import asked_for, because
from warmfleet_operator.scaling.decision import ScalingDecision

_COLUMNS: Final = (
    "REPLICA",
    "STATE",
    ">KV TOKENS",
    ">PINNED",
    ">CACHED",
    ">RUNNING",
    ">WAITING",
    ">QUEUED",
    ">UNIQUE",
)


def lines_of(view: ModelView) -> list[str]:
    """The whole text of one model."""
    return [*_summary(view), "", *_replicas(view.replicas)]


def _summary(view: ModelView) -> list[str]:
    pinned = view.percent_of_capacity(sum(replica.pinned_tokens for replica in view.replicas))
    cached = view.percent_of_capacity(sum(replica.cached_tokens for replica in view.replicas))
    rows = [
        ("model", ", ".join(view.names)),
        ("replicas", f"{view.ready} of {len(view.replicas)} ready{_wanted(view.decision)}"),
        ("KV memory", f"{_percent(pinned)} pinned, {_percent(cached)} cached"),
        ("prompts", _prompts(view)),
        ("misses", _misses(view)),
        ("queue", f"{view.queued_requests:,} requests, {view.queued_tokens:,} tokens"),
        ("first token", _latency(view.first_token)),
        ("next tokens", _latency(view.inter_token)),
    ]
    if view.decision is not None:
        asks = asked_for(view.decision.recommendations)
        rows[2:2] = [("because", because(view.decision)), ("asked for", asks or "nothing")]
    if view.remark:
        rows.append(("missing", view.remark))
    return [f"{name:<12} {printable(text)}" for name, text in rows]


def _wanted(decision: ScalingDecision | None) -> str:
    return "" if decision is None else f", {decision.to_replicas} wanted"


def _prompts(view: ModelView) -> str:
    if not view.prompt_tokens:
        return "none yet"
    hits = round(100 * view.cached_tokens / view.prompt_tokens)
    return f"{view.prompt_tokens:,} tokens in {view.seconds:.0f} s, {hits} % cached"


def _misses(view: ModelView) -> str:
    if not view.prompt_tokens:
        return "none yet"
    shares = ((kind, round(100 * tokens / view.prompt_tokens)) for kind, tokens in view.misses.items())
    return ", ".join(f"{share} % {kind}" for kind, share in shares if share) or "none"


def _latency(latency: Percentiles) -> str:
    values = (("p50", latency.p50), ("p90", latency.p90), ("p99", latency.p99))
    known = [f"{name} {value:,.0f} ms" for name, value in values if value is not None]
    return ", ".join(known) or "none yet"


def _percent(value: int | None) -> str:
    return "-" if value is None else f"{value} %"


def _replicas(replicas: Sequence[ReplicaView]) -> list[str]:
    return table_lines(_COLUMNS, [_row(replica) for replica in replicas])


def _row(replica: ReplicaView) -> list[str]:
    if not replica.capacity_tokens:
        return [replica.name, replica.state, *["-"] * (len(_COLUMNS) - 2)]
    held = (replica.pinned_tokens, replica.cached_tokens)
    return [
        replica.name,
        replica.state,
        f"{replica.capacity_tokens:,}",
        *(f"{100 * tokens / replica.capacity_tokens:.0f} %" for tokens in held),
        str(replica.running_sequences),
        str(replica.waiting_sequences),
        f"{replica.queued_tokens:,}",
        f"{replica.unique_value_tokens_per_second:,.1f}/s",
    ]
