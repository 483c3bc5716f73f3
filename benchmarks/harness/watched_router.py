"""The router as users run it, and a watch on its event loop that is printed when the router ends.

A task that sleeps for a millisecond, again and again, notes how late it was: for that long the event loop
did nothing else. Every few seconds it has all garbage collected, so that a full collection is among what
is measured and does not depend on luck.

    PYTHONPATH=benchmarks python -m harness.watched_router <flags of the router>

prints one line of JSON at the end: pauses as [start, seconds, seconds of processor time], with starts on the
clock `time.monotonic`, and full collections alike.
"""

import asyncio
import contextlib
import gc
import json
import sys
import time
from dataclasses import dataclass, field
from typing import Final

from warmfleet_router import __main__ as entry

NOTED_SECONDS: Final = 0.003
COLLECT_SECONDS: Final = 5.0
serve: Final = entry.serve


@dataclass(frozen=True, slots=True)
class LoopWatch:
    """What was seen so far."""

    pauses: list[tuple[float, float, float]] = field(default_factory=list)
    collections: list[tuple[float, float, float]] = field(default_factory=list)

    async def run(self) -> None:
        """Watch until cancelled."""
        last, last_used = time.monotonic(), time.thread_time()
        collect_at = last + COLLECT_SECONDS
        while True:
            await asyncio.sleep(0.001)
            if last > collect_at:
                collect_at = last + COLLECT_SECONDS
                gc.collect()
            now, used = time.monotonic(), time.thread_time()
            if now - last > NOTED_SECONDS:
                self.pauses.append((last, now - last, used - last_used))
            last, last_used = now, used

    def on_collection(self, phase: str, details: dict[str, int]) -> None:
        """A callback of the garbage collector."""
        if details["generation"] < 2:
            return
        if phase == "start":
            self.collections.append((time.monotonic(), 0.0, time.thread_time()))
        else:
            started, _, used = self.collections.pop()
            self.collections.append((started, time.monotonic() - started, time.thread_time() - used))


async def watched(*parts: object) -> None:
    """Serve like the router's own `serve`, and watch meanwhile."""
    watch = LoopWatch()
    gc.callbacks.append(watch.on_collection)
    watching = asyncio.create_task(watch.run())
    try:
        await serve(*parts)  # type: ignore[arg-type]
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        print(json.dumps({"pauses": watch.pauses, "collections": watch.collections}), flush=True)


if __name__ == "__main__":
    entry.serve = watched
    sys.exit(entry.main())
