"""From the first remark to the exit code: what a benchmark says, writes and is judged by."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import typer
from rich.console import Console, RenderableType

from warmfleet_cli.bench.figures import Target
from warmfleet_cli.bench.machine import Machine, idle_remark, measure_busy_ratio, this_machine
from warmfleet_cli.bench.observer import Observer, ProgressObserver
from warmfleet_contracts.errors import WarmfleetError

MISSED: Final = 1
IMPOSSIBLE: Final = 2

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Report:
    """Speaks to the person who waits. With `json_output`, standard output carries the record alone."""

    console: Console
    json_output: bool

    def check_machine(self) -> tuple[Machine, str]:
        """What the figures are measured on, and a sentence on whether it is idle; takes two seconds."""
        remark = idle_remark(measure_busy_ratio())
        self.say(remark)
        return this_machine(), remark

    def say(self, text: str) -> None:
        """One line."""
        self.console.print(text, highlight=False, markup=False)

    def run(self, benchmark: Callable[[Observer], Result]) -> Result:
        """The result of `benchmark`, with a progress bar while it takes."""
        with ProgressObserver(self.console) as observer:
            return benchmark(observer)

    def finish(
        self,
        name: str,
        folder: Path,
        *,
        record: Mapping[str, Any],
        charts: Mapping[str, str],
        shown: Sequence[RenderableType],
        targets: Sequence[Target],
    ) -> None:
        """Write the files, show the tables, judge the targets.

        Raises:
            typer.Exit: with code `MISSED`, if a target is missed.
        """
        record = {**record, "targets": target_records(targets)}
        paths = write_report(folder, name, record, charts)
        for each in shown:
            self.console.print(each, highlight=False)
        for target in targets:
            style = "green" if target.reached else "bold red"
            self.console.print(target.verdict(), style=style, highlight=False, markup=False)
        self.say(f"Written: {', '.join(str(path) for path in paths)}")
        if self.json_output:
            typer.echo(paths[0].read_text(encoding="utf-8"), nl=False)
        if not all(target.reached for target in targets):
            raise typer.Exit(MISSED)


@contextlib.contextmanager
def reporting(json_output: bool) -> Iterator[Report]:
    """A report whose errors of ours end in one line and exit code `IMPOSSIBLE`."""
    report = Report(Console(stderr=json_output), json_output)
    try:
        yield report
    except WarmfleetError as error:
        report.say(f"error: {error}")
        raise typer.Exit(IMPOSSIBLE) from error


def log_folder(output_folder: Path) -> Path:
    """Where the processes of a benchmark log to; made if it is not there."""
    folder = output_folder / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_report(folder: Path, name: str, record: Mapping[str, Any], charts: Mapping[str, str]) -> list[Path]:
    """Write `<name>.json` and one `<name>-<chart>.svg` each; the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.json"]
    paths[0].write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
    for chart, document in charts.items():
        paths.append(folder / f"{name}-{chart}.svg")
        paths[-1].write_text(document, encoding="utf-8")
    return paths


def target_records(targets: Sequence[Target]) -> list[dict[str, Any]]:
    """The targets for the JSON report."""
    return [
        {
            "name": target.name,
            "measured": target.measured,
            "required": target.required,
            "at_least": target.at_least,
            "unit": target.unit.strip(),
            "reached": target.reached,
        }
        for target in targets
    ]
