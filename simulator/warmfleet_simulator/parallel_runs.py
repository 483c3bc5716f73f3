"""Simulates one traffic through many fleets, in several processes.

What is to be simulated may depend on results: a `Work` yields runs one after the other and receives what
came of each. Its result depends on these alone, so it is the same with any number of processes.
"""

import multiprocessing
import os
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from warmfleet_runtime.die_with_parent import die_with_parent
from warmfleet_simulator.progress import OnProgress, Progress
from warmfleet_simulator.report import Report
from warmfleet_simulator.simulation import Simulated, SimulationSettings, simulate_with_requests
from warmfleet_simulator.traces.traffic import Traffic

T = TypeVar("T")
WATCH_SECONDS: Final = 0.2
"""Between two looks at the progress of other processes."""
_NUMBERS: Final = 3
"""Of a progress."""


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation."""

    name: str
    settings: SimulationSettings


Work = Generator[Run, Simulated, T]


def single(run: Run) -> Work[Simulated]:
    """The work of one run."""
    return (yield run)


class Watcher(Protocol):
    """Shows what is simulated."""

    def planned(self, simulations: int) -> None:
        """About so many more will begin."""

    def began(self, name: str) -> None: ...

    def progressed(self, name: str, progress: Progress) -> None: ...

    def ended(self, name: str, report: Report) -> None: ...

    def remarked(self, line: str) -> None:
        """What follows from those that have ended."""


class Runs:
    """Completes works; at most `jobs` simulations at a time.

    with open_runs(traffic, jobs=2, watcher=watcher) as runs:
        grids = runs.complete([search(...), search(...)])
    """

    def __init__(self, traffic: Traffic, jobs: int, watcher: Watcher, pool: "_Pool | None") -> None:
        self.traffic = traffic
        self.jobs = jobs
        self._watcher = watcher
        self._pool = pool

    def plan(self, simulations: int) -> None:
        """Show that about so many are still to come."""
        self._watcher.planned(simulations)

    def remark(self, line: str) -> None:
        """Show what follows from the simulations so far."""
        self._watcher.remarked(line)

    def complete(self, works: Sequence[Work[T]]) -> list[T]:
        """The results, in the order of `works`.

        Raises:
            SimulationError: a run cannot be simulated, such as for a damaged line of the trace.
        """
        return self._in_processes(works) if self._pool else [self._alone(work) for work in works]

    def _alone(self, work: Work[T]) -> T:
        try:
            run = next(work)
            while True:
                self._watcher.began(run.name)
                on_progress = partial(self._watcher.progressed, run.name)
                simulated = _simulated(self.traffic, run.settings, on_progress)
                self._watcher.ended(run.name, simulated.report)
                run = work.send(simulated)
        except StopIteration as end:
            result: T = end.value
            return result

    def _in_processes(self, works: Sequence[Work[T]]) -> list[T]:
        assert self._pool is not None
        pool, watcher = self._pool, self._watcher
        results: dict[int, T] = {}
        waiting = [(index, next(work)) for index, work in enumerate(works)]
        running: dict[Future[Simulated], tuple[int, Run, int]] = {}
        while waiting or running:
            free = sorted({*range(self.jobs)} - {slot for _, _, slot in running.values()})
            for slot in free[: len(waiting)]:
                index, run = waiting.pop(0)
                watcher.began(run.name)
                running[pool.submit(run, slot)] = index, run, slot
            done, _ = wait(running, timeout=WATCH_SECONDS, return_when=FIRST_COMPLETED)
            for _, run, slot in running.values():
                watcher.progressed(run.name, pool.progress(slot))
            for future in done:
                index, run, _ = running.pop(future)
                simulated = future.result()
                watcher.ended(run.name, simulated.report)
                try:
                    waiting.append((index, works[index].send(simulated)))
                except StopIteration as end:
                    results[index] = end.value
        return [results[index] for index in range(len(works))]


@contextmanager
def open_runs(traffic: Traffic, *, jobs: int, watcher: Watcher) -> Iterator[Runs]:
    """Runs in this process with one job, otherwise in as many others as `jobs`."""
    if jobs == 1:
        yield Runs(traffic, jobs, watcher, None)
        return
    pool = _Pool(traffic, jobs)
    try:
        yield Runs(traffic, jobs, watcher, pool)
    except BaseException:
        pool.kill()
        raise
    finally:
        pool.close()


class _Pool:
    """Processes, and in memory that they share a slot per run for its progress."""

    def __init__(self, traffic: Traffic, jobs: int) -> None:
        # Not forked: the progress bar has a thread.
        context = multiprocessing.get_context("spawn")
        self._numbers: Any = context.RawArray("d", jobs * _NUMBERS)
        self._executor = ProcessPoolExecutor(
            jobs,
            mp_context=context,
            initializer=_begin_process,
            initargs=(traffic, self._numbers, os.getpid()),
        )

    def submit(self, run: Run, slot: int) -> "Future[Simulated]":
        self._numbers[slot * _NUMBERS : (slot + 1) * _NUMBERS] = [0.0] * _NUMBERS
        return self._executor.submit(_simulate_in_process, run.settings, slot)

    def progress(self, slot: int) -> Progress:
        requests, seconds, ratio = self._numbers[slot * _NUMBERS : (slot + 1) * _NUMBERS]
        return Progress(int(requests), seconds, ratio)

    def kill(self) -> None:
        """End simulations that run, whose results are not wanted any more."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()

    def close(self) -> None:
        self._executor.shutdown()


_in_process: "list[tuple[Traffic, Any]]" = []
"""Of a process of a pool: what it simulates, and where it writes its progress."""


def _begin_process(traffic: Traffic, numbers: Any, parent_pid: int) -> None:
    # One that is killed ends no pool, and its processes would wait for work for ever.
    die_with_parent(parent_pid)
    _in_process[:] = [(traffic, numbers)]


def _simulate_in_process(settings: SimulationSettings, slot: int) -> Simulated:
    ((traffic, numbers),) = _in_process

    def write(progress: Progress) -> None:
        numbers[slot * _NUMBERS : (slot + 1) * _NUMBERS] = progress

    return _simulated(traffic, settings, write)


def _simulated(traffic: Traffic, settings: SimulationSettings, on_progress: OnProgress) -> Simulated:
    with traffic.open() as reading:
        return simulate_with_requests(
            reading.requests, settings, done_ratio=reading.done_ratio, on_progress=on_progress
        )
