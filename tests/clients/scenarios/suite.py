"""Runs scenarios one after the other and prints one JSON line for each.

These scripts run inside the environment of the client they are about, so they import nothing but the standard
library and that client. A scenario fails by raising; it declares beforehand how many HTTP requests it sends,
and the test counts at the router.
"""

import argparse
import asyncio
import inspect
import json
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Scenario = Callable[[Any], Awaitable[None]]


@dataclass
class Suite:
    """Scenarios in the order in which they are written down."""

    scenarios: list[tuple[Scenario, int]] = field(default_factory=list)

    def scenario(self, *, requests: int) -> Callable[[Scenario], Scenario]:
        """Add a scenario that sends this many requests."""

        def added(function: Scenario) -> Scenario:
            self.scenarios.append((function, requests))
            return function

        return added

    async def run(self, subject: Any, *, label: str = "") -> None:
        """Run every scenario with `subject`; `label` comes before their names."""
        for function, requests in self.scenarios:
            detail = ""
            try:
                await function(subject)
            except Exception as error:  # noqa: BLE001 - any error of a client is the scenario's result
                where = traceback.extract_tb(error.__traceback__)[1:]
                lines = " < ".join(f"{frame.name}:{frame.lineno} {frame.line}" for frame in reversed(where))
                detail = f"{type(error).__name__}: {error} at {lines}"[:2000]
            name = f"{label}{function.__name__.replace('_', ' ')}"
            result = {"name": name, "ok": not detail, "requests": requests, "detail": detail}
            sys.stdout.write(json.dumps(result) + "\n")
            sys.stdout.flush()


def target() -> argparse.Namespace:
    """The command line.

    `base_url` has `/v1` and no trailing slash; `key` may call `model`, `other_key` only another one, and
    `narrow_key` may have one request in flight.
    """
    parser = argparse.ArgumentParser()
    for name in ("base_url", "model", "key", "other_key", "narrow_key"):
        parser.add_argument(name)
    return parser.parse_args()


async def settled(value: Any) -> Any:
    """What a call of either flavour of a client returns: async clients give something to await."""
    return await value if inspect.isawaitable(value) else value


async def each(stream: Any) -> AsyncIterator[Any]:
    """The items of a sync or async stream."""
    if hasattr(stream, "__aiter__"):
        async for item in stream:
            yield item
    else:
        for item in stream:
            yield item


async def listed(stream: Any) -> list[Any]:
    """All items of a sync or async stream."""
    return [item async for item in each(stream)]


@asynccontextmanager
async def entered(context: Any) -> AsyncIterator[Any]:
    """A sync or async context manager."""
    if hasattr(context, "__aenter__"):
        async with context as value:
            yield value
    else:
        with context as value:
            yield value


async def raised(kind: type[Exception], call: Callable[[], Any]) -> Any:
    """The error of type `kind` that `call` raises, at once or when awaited."""
    try:
        answer = await settled(call())
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}, got {answer!r}")


async def concurrently(calls: list[Callable[[], Any]]) -> list[Any]:
    """The results of calls that run at once: sync ones in threads, async ones as tasks."""

    async def one(call: Callable[[], Any]) -> Any:
        return await settled(await asyncio.to_thread(call))

    return await asyncio.gather(*(one(call) for call in calls))
