"""Canaries: fixed greedy requests that run all the time, and whose answers must not change by a byte.

Of log probabilities the last digits may: torch rounds a row otherwise when it is multiplied with others.
"""

import asyncio
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from warmfleet_testing.hostile.request import CHAT, MODEL, TEXT

CANARIES: Final = 24
ANSWER_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 0.2
"""Between an answer and the same question: a few canaries fly at any time, and attackers get the machine."""
LOGPROB_TOLERANCE: Final = 1e-4
_CHANGES: Final = re.compile(rb'"(created|cached_tokens)":\d+')
"""What may differ between two answers to one request: when it came, and what was still warm."""
_FRACTION: Final = re.compile(rb"-\d+\.\d+(?:e-\d+)?")


@dataclass(frozen=True, slots=True)
class CanaryAnswer:
    """An answer: its bytes without fractions, and the fractions."""

    content: bytes
    fractions: tuple[float, ...]

    @classmethod
    def of(cls, content: bytes) -> "CanaryAnswer":
        masked = _CHANGES.sub(rb'"\1":0', content)
        return cls(_FRACTION.sub(b"?", masked), tuple(map(float, _FRACTION.findall(masked))))

    def is_same(self, other: "CanaryAnswer") -> bool:
        return self.content == other.content and all(
            abs(mine - theirs) < LOGPROB_TOLERANCE
            for mine, theirs in zip(self.fractions, other.fractions, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Canary:
    """One request that is asked again and again."""

    name: str
    path: str
    body: dict[str, Any]

    async def ask(self, session: aiohttp.ClientSession) -> CanaryAnswer:
        """The whole answer; raises AssertionError for anything but 200."""
        headers = {"x-request-id": self.name}
        async with session.post(self.path, json=self.body, headers=headers) as response:
            content = await response.read()
            assert response.status == 200, (self.name, response.status, content)
        return CanaryAnswer.of(_joined(content) if self.body.get("stream") else content)


def canaries() -> list[Canary]:
    """Chat and text, plain and streamed, with and without what touches a batch's shared state."""
    special: list[dict[str, Any]] = [
        {},
        {"logprobs": 3},
        {"repetition_penalty": 1.3, "presence_penalty": 0.5},
        {"logit_bias": {"9": -100, "17": 5}, "min_tokens": 8},
        {"n": 2},
        {"stop_token_ids": [42], "return_token_ids": True},
    ]
    found = []
    for number in range(CANARIES):
        words = f"canary {number}: " + " ".join(f"{number * step % 97}" for step in range(1, 9))
        fields = {"model": MODEL, "temperature": 0, "max_tokens": 12 + number % 5, "ignore_eos": True}
        fields |= special[number // 4]
        if number % 4 >= 2:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        if number % 2:
            found.append(Canary(f"canary-{number}", TEXT, {**fields, "prompt": words}))
            continue
        if "logprobs" in fields:
            fields |= {"logprobs": True, "top_logprobs": 3}
        messages = [{"role": "user", "content": words}]
        found.append(Canary(f"canary-{number}", CHAT, {**fields, "messages": messages}))
    return found


def _joined(content: bytes) -> bytes:
    """The events of a stream as one answer: how many tokens share an event is a matter of time."""
    choices: dict[int, dict[str, Any]] = {}
    rest: list[Any] = []
    for event in content.decode().split("\n\n"):
        if not event.startswith("data: {"):
            rest += [event] if event and not event.startswith(":") else []
            continue
        chunk = json.loads(event.removeprefix("data: "))
        assert "error" not in chunk, chunk
        rest += [chunk["usage"]] if chunk.get("usage") else []
        for choice in chunk["choices"]:
            joined = choices.setdefault(
                choice["index"], {"text": "", "end": None, "logprobs": [], "token_ids": []}
            )
            joined["text"] += choice.get("text") or choice.get("delta", {}).get("content") or ""
            joined["end"] = choice["finish_reason"] or joined["end"]
            joined["token_ids"] += choice.get("token_ids") or []
            logprobs = choice.get("logprobs") or {}
            joined["logprobs"] += logprobs.get("content") or logprobs.get("token_logprobs") or []
    return json.dumps([choices, rest], separators=(",", ":")).encode()


@dataclass
class Cage:
    """The canaries of one router and their answers alone."""

    url: str
    key: str
    alone: dict[str, CanaryAnswer] = field(default_factory=dict)
    flights: Counter[str] = field(default_factory=Counter)
    """How often each has been asked while others asked, too."""
    changed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.canaries = canaries()

    def listen(self) -> None:
        """Record each answer without other load; twice, and both must be equal."""
        asyncio.run(self._alone())

    @contextmanager
    def flying(self) -> Iterator[None]:
        """All ask in loops while the block lasts: each at least once, and none may have changed."""
        self.flights.clear()
        self.changed.clear()
        ending = threading.Event()
        failed: list[BaseException] = []

        def fly() -> None:
            try:
                asyncio.run(self._fly(ending))
            except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
                failed.append(error)

        thread = threading.Thread(target=fly)
        thread.start()
        try:
            yield
        finally:
            ending.set()
            thread.join()
        assert not failed, failed
        assert not self.changed, self.changed
        assert len(self.flights) == CANARIES, sorted(self.flights)

    async def _alone(self) -> None:
        async with self._session() as session:
            for canary in self.canaries:
                self.alone[canary.name] = await canary.ask(session)
                again = await canary.ask(session)
                assert again.is_same(self.alone[canary.name]), (again, self.alone[canary.name])

    async def _fly(self, ending: threading.Event) -> None:
        async def loop(canary: Canary) -> None:
            while True:
                answer = await canary.ask(session)
                self.flights[canary.name] += 1
                if not answer.is_same(self.alone[canary.name]):
                    self.changed.append(f"{canary.name}: {answer!r} for {self.alone[canary.name]!r}")
                if ending.is_set():
                    return
                await asyncio.sleep(PAUSE_SECONDS)

        async with self._session() as session:
            await asyncio.gather(*map(loop, self.canaries))

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            self.url,
            headers={"authorization": f"Bearer {self.key}"},
            timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS),
            connector=aiohttp.TCPConnector(limit=CANARIES),
        )
