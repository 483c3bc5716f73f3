"""The answers of several routers about the same workers, merged into one view. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from warmfleet_contracts.cache.fleet_totals import MAX_MODELS, MAX_REPLICAS
from warmfleet_contracts.cache.kv_events import Count
from warmfleet_contracts.cache.start_phases import StartPhases

_Total = Annotated[int, msgspec.Meta(ge=0)]


class _Load(msgspec.Struct):
    waiting_sequences: Count = 0
    total_blocks: Count = 0
    pinned_blocks: Count = 0


class _Endpoint(msgspec.Struct):
    uid: str
    ready: bool = False
    block_size_tokens: Count | None = None
    load: _Load = msgspec.field(default_factory=_Load)
    start_seconds: StartPhases = StartPhases()
    exact: bool | None = None


class _Held(msgspec.Struct):
    requests: Count = 0


class _Tokens(msgspec.Struct):
    prompt: _Total = 0
    cached: _Total = 0


class FleetAnswer(msgspec.Struct):
    """The fields that the operator reads of a router's `/internal/fleet`."""

    endpoints: Annotated[list[_Endpoint], msgspec.Meta(max_length=MAX_REPLICAS)] = []
    held: Annotated[dict[str, _Held], msgspec.Meta(max_length=MAX_MODELS)] = {}
    waking: Annotated[dict[str, _Held], msgspec.Meta(max_length=MAX_MODELS)] = {}
    """Those that wait for their model to wake."""
    tokens: Annotated[dict[str, _Tokens], msgspec.Meta(max_length=MAX_MODELS)] = {}
    """By model name, since the router's start."""


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """One worker, as the routers report it."""

    ready_in: frozenset[int]
    """Indices, among the routers that answer, of those that count it as ready."""
    total_blocks: int
    pinned_blocks: int
    block_size_tokens: int
    waiting: int
    start: StartPhases = field(default_factory=StartPhases)
    """How long the start of its process took; empty until a router knows."""
    exact: bool | None = None
    """Whether it promises equal bits for equal tokens; None until a router knows."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Prompt tokens, and how many of them were cached."""

    prompt: int = 0
    cached: int = 0


@dataclass(frozen=True, slots=True)
class FleetView:
    """The merged view of all routers."""

    routers: int = 0
    """Ready router pods."""
    answering: int = 0
    problem: str = ""
    """Error of a router that did not answer; empty if all did."""
    workers: Mapping[str, WorkerFigures] = field(default_factory=dict)
    """By pod uid."""
    held: Mapping[str, int] = field(default_factory=dict)
    """Requests that wait in routers, for a worker with capacity or for one at all, by model name."""
    tokens: Mapping[str, Tokens] = field(default_factory=dict)
    """By model name."""
    polled: bool = False
    """False before the routers were polled for the first time."""

    def ready_in(self, uids: Iterable[str]) -> frozenset[int]:
        """Routers that count at least one of these workers as ready."""
        counted = (self.workers[uid].ready_in for uid in uids if uid in self.workers)
        return frozenset().union(*counted)


def merged_view(answers: Iterable[FleetAnswer], *, routers: int, problem: str = "") -> FleetView:
    """Merge the answers. A worker's load is the maximum, not the sum: all routers report the same workers."""
    answers = list(answers)
    workers: dict[str, WorkerFigures] = {}
    held: dict[str, int] = {}
    tokens: dict[str, Tokens] = {}
    for index, answer in enumerate(answers):
        for endpoint in answer.endpoints:
            load, known = endpoint.load, workers.get(endpoint.uid)
            workers[endpoint.uid] = WorkerFigures(
                ready_in=(known.ready_in if known else frozenset()) | ({index} if endpoint.ready else set()),
                total_blocks=max(load.total_blocks, known.total_blocks if known else 0),
                pinned_blocks=max(load.pinned_blocks, known.pinned_blocks if known else 0),
                block_size_tokens=endpoint.block_size_tokens or (known.block_size_tokens if known else 0),
                start=endpoint.start_seconds
                if known is None or endpoint.start_seconds != StartPhases()
                else known.start,
                exact=endpoint.exact if endpoint.exact is not None else (known.exact if known else None),
                waiting=max(load.waiting_sequences, known.waiting if known else 0),
            )
        for model, waiting in (*answer.held.items(), *answer.waking.items()):
            held[model] = held.get(model, 0) + waiting.requests
        for model, more in answer.tokens.items():
            so_far = tokens.get(model, Tokens())
            tokens[model] = Tokens(so_far.prompt + more.prompt, so_far.cached + more.cached)
    return FleetView(routers, len(answers), problem, workers, held, tokens, polled=True)
