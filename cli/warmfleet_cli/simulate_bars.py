"""Progress of `warmfleet simulate`: a bar per simulation that runs, and results of those that have ended."""

from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBars

from warmfleet_cli.output import make_console

if TYPE_CHECKING:
    from collections.abc import Callable

    from warmfleet_simulator.progress import Progress
    from warmfleet_simulator.report import Report


class SimulationBars:
    """Bars on stderr, none where that is no terminal; with an objective a line per ended simulation.

    A comparison takes up to hours: who has to end it early has these lines.
    """

    def __init__(self, result_text: "Callable[[Report], str]") -> None:
        """`result_text` writes what came of a simulation."""
        self._result_text = result_text
        self._console = console = make_console(stderr=True)
        self._bars = ProgressBars(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._all = self._bars.add_task("all", total=0, state="")
        self._tasks: dict[str, TaskID] = {}
        self._planned = 0
        self._begun = 0
        self._ended = 0

    def planned(self, simulations: int) -> None:
        """At least so many more will begin."""
        self._planned = self._begun + simulations
        self._show()

    def began(self, name: str) -> None:
        """A simulation runs."""
        self._begun += 1
        self._tasks[name] = self._bars.add_task(name, total=1.0, state="")
        self._show()

    def progressed(self, name: str, progress: "Progress") -> None:
        """Show how far one simulation is."""
        state = f"{progress.requests:,} requests, {progress.virtual_seconds:,.0f} s of the trace"
        self._bars.update(self._tasks[name], completed=progress.done_ratio, state=state)

    def ended(self, name: str, report: "Report") -> None:
        """Take its bar away, and show what came of it, unless it is the only one."""
        self._ended += 1
        self._bars.remove_task(self._tasks.pop(name))
        if self._planned > 1 and report.objective_percent is not None:
            self.remarked(f"{name}: {self._result_text(report)}")
        self._show()

    def remarked(self, line: str) -> None:
        """Show a line above the bars."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _show(self) -> None:
        total = max(self._planned, self._begun)
        self._bars.update(
            self._all, total=total, completed=self._ended, state=f"{self._ended} of {total} simulations"
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()
