"""Classes I and J: what takes many requests at once. Neighbours in a batch, and floods of names."""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from warmfleet_testing.hostile.canaries import canaries
from warmfleet_testing.hostile.request import MODEL, TEXT
from warmfleet_testing.hostile.values import VOCABULARY

OPEN_AT_ONCE: Final = 24
ALL_BIASES: Final = {str(token): (-1) ** token * 100 for token in range(VOCABULARY)}


@dataclass(frozen=True, slots=True)
class Mix:
    """Requests that share batches with a victim's; `leaves`: each client goes after the first bytes."""

    name: str
    requests: list[tuple[str, dict[str, Any]]]
    leaves: bool = False
    shares_cache: bool = False
    """Whether they come with the victim's own key, and so from its cache."""


def mixes() -> list[Mix]:
    """Class I: state that has crossed from one row of a batch to another, elsewhere."""

    def texts(count: int, fields: Callable[[int], dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
        base = {"model": MODEL, "max_tokens": 12, "ignore_eos": True}
        return [
            (TEXT, {**base, "prompt": f"neighbour {i} " * (1 + i % 7), **fields(i)}) for i in range(count)
        ]

    edges: list[dict[str, Any]] = [
        {"temperature": 2, "top_k": 1 + 7, "seed": 1},
        {"temperature": 2, "top_p": 0.01, "min_p": 0.99},
        {"repetition_penalty": 100, "frequency_penalty": 2, "presence_penalty": -2},
        {"repetition_penalty": 0.01, "frequency_penalty": -2, "temperature": 0.01},
        {"logit_bias": ALL_BIASES, "min_tokens": 12},
        {"stop_token_ids": [*range(128)], "n": 4},
        {"logprobs": 20, "echo": True, "max_tokens": 0},
    ]
    own_words = [(canary.path, canary.body) for canary in canaries()]
    salted = [
        (path, {**body, "cache_salt": f"salt-{i}", "temperature": 2, "logit_bias": ALL_BIASES})
        for i, (path, body) in enumerate(own_words)
    ]
    reseeded = [
        (path, {**body, "temperature": 2, "seed": i, "max_tokens": 20})
        for i, (path, body) in enumerate(own_words)
    ]
    no_number = {"temperature": 5e-324, "logit_bias": ALL_BIASES}
    return [
        Mix("every edge of sampling", texts(42, lambda i: edges[i % len(edges)])),
        Mix("no number left", texts(24, lambda i: {**no_number, "seed": i})),
        Mix("answers of all lengths", texts(48, lambda i: {"max_tokens": 1 + i % 24, "temperature": 1})),
        Mix(
            "clients that leave",
            texts(32, lambda i: {"max_tokens": 100, "stream": True, "n": 1 + i % 2}),
            leaves=True,
        ),
        Mix("the same words with other salts", salted),
        Mix("the same words in the same cache", reseeded, shares_cache=True),
        Mix(
            "prompts that take every block",
            texts(48, lambda i: {"prompt": [4 + i] * 100, "max_tokens": 140, "n": 2}),
        ),
        Mix(
            "every log probability",
            texts(24, lambda i: {"logprobs": i % 21, "echo": i % 2 == 0, "n": 1 + i % 3}),
        ),
        Mix(
            "requests refused in the middle",
            texts(48, lambda i: {"prompt": [4 + i] * (250 + i), "n": 1 + i % 8}),
        ),
    ]


Asked = tuple[str, str, dict[str, str], dict[str, Any] | None]
"""Method, path, headers and JSON body."""


@dataclass(frozen=True, slots=True)
class Flood:
    """Requests that each carry a new word where a label or a key of a dict could come from."""

    name: str
    request: Callable[[str], Asked]
    servers: tuple[str, ...] = ("router", "worker")


def floods() -> list[Flood]:
    """Class J."""
    body = {"model": MODEL, "prompt": "x", "max_tokens": 1, "ignore_eos": True}  # all finish for one reason

    def posted(fields: Callable[[str], dict[str, Any]]) -> Callable[[str], Asked]:
        return lambda word: ("POST", TEXT, {}, {**body, **fields(word)})

    def named(word: str) -> Asked:
        return "POST", TEXT, {"x-request-id": word}, {**body, "stop": [word]}

    def dispatched(word: str) -> Asked:
        return "POST", TEXT, {"x-warmfleet-router": word, "x-warmfleet-dispatch": "1"}, body

    return [
        Flood("models", posted(lambda word: {"model": word})),
        Flood("models in the path", lambda word: ("GET", f"/v1/models/{word}", {}, None)),
        Flood("paths", lambda word: ("GET", f"/{word}/{word}", {}, None)),
        Flood("methods", lambda word: (METHODS[int(word[-4:], 16) % len(METHODS)], f"/v1/{word}", {}, None)),
        Flood("fields", posted(lambda word: {word: word, "n": 9})),
        Flood("fields that are served", posted(lambda word: {word: word})),
        Flood("salts", posted(lambda word: {"cache_salt": word, "user": word, "metadata": {word: word}})),
        Flood("request ids", named),
        Flood(
            "clients",
            lambda word: ("GET", "/v1/models", {"user-agent": word, "origin": f"http://{word}"}, None),
        ),
        Flood("keys", lambda word: ("GET", "/v1/models", {"authorization": f"Bearer wf-{word}"}, None)),
        Flood("routers", dispatched, ("worker",)),
    ]


METHODS: Final = (
    "GET",
    "PUT",
    "DELETE",
    "PATCH",
    "OPTIONS",
    "PROPFIND",
    "MKCOL",
    "LOCK",
    "PURGE",
    "SEARCH",
    "REPORT",
)
"""Those that the parser knows, of which a label could be made."""


@dataclass
class Crowd:
    """Asks one server with one key, several at once; `statuses` is what came back."""

    url: str
    key: str
    statuses: list[int] = field(default_factory=list)

    def mix(self, mix: Mix) -> None:
        asyncio.run(self._all([("POST", path, {}, body, mix.leaves) for path, body in mix.requests]))

    def flood(self, flood: Flood, count: int) -> None:
        drawn = (flood.request("w" + secrets.token_hex(8)) for _ in range(count))
        asyncio.run(self._all([(*request, False) for request in drawn]))

    async def _all(
        self, requests: list[tuple[str, str, dict[str, str], dict[str, Any] | None, bool]]
    ) -> None:
        waiting = iter(requests)

        async def ask(session: aiohttp.ClientSession) -> None:
            for method, path, headers, body, leaves in waiting:
                async with session.request(method, path, headers=headers, json=body) as response:
                    self.statuses.append(response.status)
                    if leaves:
                        await response.content.readany()
                        response.close()
                    else:
                        await response.read()

        async with aiohttp.ClientSession(
            self.url,
            headers={"authorization": f"Bearer {self.key}"},
            timeout=aiohttp.ClientTimeout(total=60),
        ) as session:
            await asyncio.gather(*(ask(session) for _ in range(OPEN_AT_ONCE)))
