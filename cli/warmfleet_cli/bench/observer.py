"""How a benchmark reports its progress to the user."""

from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Observer(Protocol):
    """Receives the progress of a benchmark."""

    def stage(self, text: str, total: int) -> None:
        """A stage of `total` steps begins."""

    def advance(self, steps: int = 1) -> None:
        """`steps` steps of the current stage are done."""

    def remark(self, text: str) -> None:
        """A line to show before the end."""


class ProgressObserver:
    """Shows a progress bar per stage on `console` while the block lasts."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._progress.add_task("", visible=False)

    def stage(self, text: str, total: int) -> None:
        self._task = self._progress.add_task(text, total=total)

    def advance(self, steps: int = 1) -> None:
        self._progress.advance(self._task, steps)

    def remark(self, text: str) -> None:
        self._progress.console.print(text, highlight=False)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
