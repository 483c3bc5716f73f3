"""What a run of `make check-containers` measures, printed at its end."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Figures:
    """Rows in the order in which they were added."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, str]] = []

    def add(self, name: str, value: float, unit: str = "s") -> None:
        self._rows.append((name, f"{value:.1f} {unit}"))

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the seconds that the block takes; none if it fails."""
        began = time.monotonic()
        yield
        self.add(name, time.monotonic() - began)

    def lines(self) -> list[str]:
        width = max((len(name) for name, _ in self._rows), default=0)
        return [f"{name:{width}}  {value:>10}" for name, value in self._rows]
