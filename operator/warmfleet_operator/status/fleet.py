"""What several routers say of the same workers, as one view. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec


class _Load(msgspec.Struct):
    waiting_sequences: int = 0
    total_blocks: int = 0
    pinned_blocks: int = 0


class _Endpoint(msgspec.Struct):
    uid: str
    ready: bool = False
    block_size_tokens: int | None = None
    load: _Load = msgspec.field(default_factory=_Load)


class _Held(msgspec.Struct):
    requests: int = 0


class _Tokens(msgspec.Struct):
    prompt: int = 0
    cached: int = 0


class FleetAnswer(msgspec.Struct):
    """What is read of a router's `/internal/fleet`."""

    endpoints: list[_Endpoint] = []
    held: dict[str, _Held] = {}
    tokens: dict[str, _Tokens] = {}
    """By model name, since the router's start."""


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """One worker, as the routers see it."""

    ready_in: frozenset[int]
    """Routers that count it as ready, by their place among those that answer."""
    total_blocks: int
    pinned_blocks: int
    block_size_tokens: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of prompts, and how many of them were in a cache."""

    prompt: int = 0
    cached: int = 0


@dataclass(frozen=True, slots=True)
class FleetView:
    """All routers together."""

    routers: int = 0
    """Ready router pods."""
    answering: int = 0
    problem: str = ""
    """Why the last that did not answer did not."""
    workers: Mapping[str, WorkerFigures] = field(default_factory=dict)
    """By pod uid."""
    held: Mapping[str, int] = field(default_factory=dict)
    """Requests that wait in routers, by model name."""
    tokens: Mapping[str, Tokens] = field(default_factory=dict)
    """By model name."""
    asked: bool = False
    """False before the first round."""

    def ready_in(self, uids: Iterable[str]) -> frozenset[int]:
        """Routers that count at least one of these workers as ready."""
        counted = (self.workers[uid].ready_in for uid in uids if uid in self.workers)
        return frozenset().union(*counted)


def summed(answers: Iterable[FleetAnswer], *, routers: int, problem: str = "") -> FleetView:
    """What several routers say, as one. Each has its own view of the same workers: load is not added up."""
    answers = list(answers)
    workers: dict[str, WorkerFigures] = {}
    held: dict[str, int] = {}
    tokens: dict[str, Tokens] = {}
    for place, answer in enumerate(answers):
        for endpoint in answer.endpoints:
            load, known = endpoint.load, workers.get(endpoint.uid)
            workers[endpoint.uid] = WorkerFigures(
                ready_in=(known.ready_in if known else frozenset()) | ({place} if endpoint.ready else set()),
                total_blocks=max(load.total_blocks, known.total_blocks if known else 0),
                pinned_blocks=max(load.pinned_blocks, known.pinned_blocks if known else 0),
                block_size_tokens=endpoint.block_size_tokens or (known.block_size_tokens if known else 0),
                waiting=max(load.waiting_sequences, known.waiting if known else 0),
            )
        for model, waiting in answer.held.items():
            held[model] = held.get(model, 0) + waiting.requests
        for model, more in answer.tokens.items():
            so_far = tokens.get(model, Tokens())
            tokens[model] = Tokens(so_far.prompt + more.prompt, so_far.cached + more.cached)
    return FleetView(routers, len(answers), problem, workers, held, tokens, asked=True)
