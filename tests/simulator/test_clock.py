"""Virtual time passes as fast as callbacks run, in the order of their timers."""

import asyncio
import signal
import time
from collections.abc import Iterator

import pytest

from warmfleet_simulator.clock import run_in_virtual_time
from warmfleet_simulator.errors import SimulationError


def test_a_day_of_sleep_takes_no_time() -> None:
    async def main() -> float:
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time()

    start = time.monotonic()
    assert run_in_virtual_time(main()) == 86_400
    assert time.monotonic() - start < 60


def test_timers_run_in_their_order_at_their_times() -> None:
    async def main() -> list[tuple[str, float]]:
        loop, seen = asyncio.get_running_loop(), []
        for name, at in (("third", 3.25), ("first", 0.5), ("second", 3.0)):
            loop.call_at(at, lambda name=name: seen.append((name, loop.time())))
        await asyncio.sleep(4)
        return seen

    assert run_in_virtual_time(main()) == [("first", 0.5), ("second", 3.0), ("third", 3.25)]


def test_timeouts_are_in_virtual_time() -> None:
    async def main() -> float:
        try:
            async with asyncio.timeout(120):
                await asyncio.sleep(3600)
        except TimeoutError:
            return asyncio.get_running_loop().time()
        raise AssertionError

    assert run_in_virtual_time(main()) == 120


def test_a_wait_for_what_will_never_come_is_an_error() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(SimulationError, match="will not come"):
        run_in_virtual_time(main())


@pytest.fixture
def default_ctrl_c() -> Iterator[None]:
    """As in a terminal: a process that a shell started in the background ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("default_ctrl_c")
def test_a_simulation_that_only_jumps_still_ends_by_ctrl_c() -> None:
    async def main() -> None:
        for second in range(10_000):
            if second == 1000:
                signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(1)

    with pytest.raises(KeyboardInterrupt):
        run_in_virtual_time(main())
