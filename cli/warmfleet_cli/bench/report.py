"""The report of a benchmark: progress, JSON and SVG files, targets and exit code."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import typer
from rich.text import Text

from warmfleet_cli.bench.figures import Target
from warmfleet_cli.bench.machine import Machine, idle_remark, measure_busy_ratio, this_machine
from warmfleet_cli.bench.observer import Observer, ProgressObserver
from warmfleet_cli.bench.tables import TextTable
from warmfleet_cli.errors import ExitCode
from warmfleet_cli.output import OutputFormat, make_console, print_json, print_table

Result = TypeVar("Result")


class Report:
    """Prints the progress and the results of one benchmark. With JSON, stdout has only the record."""

    def __init__(self, output: OutputFormat) -> None:
        self._json = output is OutputFormat.JSON
        self._console = make_console(stderr=self._json)

    def check_machine(self) -> tuple[Machine, str]:
        """The hardware, and a sentence on whether it is idle; takes two seconds."""
        remark = idle_remark(measure_busy_ratio())
        self.remark(remark)
        return this_machine(), remark

    def remark(self, text: str) -> None:
        """Print one line."""
        self._console.print(text)

    def run(self, benchmark: Callable[[Observer], Result]) -> Result:
        """Run `benchmark` with a progress bar; returns its result."""
        with ProgressObserver(self._console) as observer:
            return benchmark(observer)

    def finish(
        self,
        name: str,
        folder: Path,
        *,
        record: Mapping[str, Any],
        charts: Mapping[str, str],
        table: TextTable,
        lines: Sequence[str] = (),
        targets: Sequence[Target],
    ) -> None:
        """Write the files, print the figures, and compare them with the targets.

        Raises:
            typer.Exit: with code 1, if a target is missed.
        """
        record = {**record, "targets": target_records(targets)}
        paths = write_report(folder, name, record, charts)
        self.remark("")
        print_table(self._console, table.columns, table.rows)
        for line in ("", *lines):
            self.remark(line)
        for target in targets:
            self._console.print(Text(target.verdict(), style="green" if target.reached else "bold red"))
        self.remark(f"Written: {', '.join(str(path) for path in paths)}")
        if self._json:
            print_json(record)
        if not all(target.reached for target in targets):
            raise typer.Exit(ExitCode.FAILED)


def log_folder(output_folder: Path) -> Path:
    """The folder for the logs of a benchmark's processes; created if missing."""
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
