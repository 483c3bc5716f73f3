"""Each worker's load as prices read it, computed when something of it changes instead of for each request.

A load is the worker's last report, plus what this router sent since, less what ended since. With it are kept
what requests cost there by the worker's own rates, and the least that any of them does.
"""

from collections.abc import Iterator

import msgspec

from warmfleet_contracts.cache.kv_events import LoadReport
from warmfleet_router.routing.cost import (
    PriceFloor,
    StepRates,
    WorkerLoad,
    WorkerPrices,
    measured_rates,
    price_floor,
    worker_load,
    worker_prices,
)
from warmfleet_router.routing.open_dispatches import OpenDispatches, UnreportedLoad
from warmfleet_router.routing.seat_times import SeatTimes


class KnownLoad(msgspec.Struct, frozen=True):
    """One worker's load under one report."""

    report: LoadReport
    load: WorkerLoad
    prices: WorkerPrices | None
    """By the rates that the worker measured itself; None while too few steps stand behind them."""
    floor: PriceFloor | None
    """Of `prices`."""


class KnownLoads:
    """The load of each worker that has reported one. Call `changed` after every change of its dispatches."""

    def __init__(self, dispatches: OpenDispatches, seat_times: SeatTimes) -> None:
        self._dispatches = dispatches
        self._seat_times = seat_times
        self._known: dict[str, KnownLoad] = {}
        self._changes: dict[str, int] = {}
        """The number of the last change of each worker's load, in their order."""
        self.change = 0
        """The number of the last change of any."""

    def reported(self, uid: str, report: LoadReport) -> None:
        """A worker reported its load; `dispatches` knows of it."""
        self._keep(uid, self._known_load(uid, report, measured_rates(report.step_time)))

    def changed(self, uid: str) -> None:
        """A dispatch to a worker was opened, got its first byte or ended."""
        known = self._known.get(uid)
        if known is not None:
            rates = known.prices.rates if known.prices is not None else None
            self._keep(uid, self._known_load(uid, known.report, rates))

    def forget(self, uid: str) -> None:
        """The worker is gone."""
        self._known.pop(uid, None)
        self._changes.pop(uid, None)

    def changed_since(self, change: int) -> Iterator[str]:
        """The workers whose load has changed since the change of that number."""
        for uid in reversed(self._changes):
            if self._changes[uid] <= change:
                return
            yield uid

    def of(self, uid: str, report: LoadReport) -> KnownLoad:
        """A worker's load under `report`."""
        known = self._known.get(uid)
        if known is not None and known.report is report:
            return known
        return self._known_load(uid, report, measured_rates(report.step_time))

    def load_with(self, uid: str, report: LoadReport, planned: UnreportedLoad) -> WorkerLoad:
        """A worker's load when it has got `planned` too."""
        return self._load(uid, report, self._dispatches.unreported(uid, report.admitted_dispatches) + planned)

    def _keep(self, uid: str, known: KnownLoad) -> None:
        self._known[uid] = known
        self.change += 1
        self._changes.pop(uid, None)
        self._changes[uid] = self.change

    def _known_load(self, uid: str, report: LoadReport, rates: StepRates | None) -> KnownLoad:
        load = self._load(uid, report, self._dispatches.unreported(uid, report.admitted_dispatches))
        if rates is None:
            return KnownLoad(report, load, None, None)
        prices = worker_prices(load, rates, seat_seconds=self._seat_times.seconds(uid))
        return KnownLoad(report, load, prices, price_floor(prices))

    def _load(self, uid: str, report: LoadReport, unreported: UnreportedLoad) -> WorkerLoad:
        ended = self._dispatches.ended(uid, report)
        return worker_load(
            report,
            unreported_tokens=unreported.tokens,
            unreported_seats=unreported.seats,
            unreported_blocks=unreported.blocks,
            ended_seats=ended.seats,
            ended_blocks=ended.blocks,
        )
