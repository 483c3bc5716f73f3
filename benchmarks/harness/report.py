"""What each benchmark prints and writes: the machine, whether it was idle, verdicts and `results.json`."""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from warmfleet_cli.bench.figures import Target
from warmfleet_cli.bench.machine import cpu_model, idle_remark, measure_busy_ratio


@dataclass(frozen=True, slots=True)
class Report:
    """The report of one run.

    report = Report.begin(options, machine_line())
    ...  # measure
    return report.end(measured.table(), measured.targets(), measured=asdict(measured))
    """

    options: argparse.Namespace
    machine: str
    idle: str

    @classmethod
    def begin(cls, options: argparse.Namespace, machine: str) -> Self:
        """Make the output folder and print the hardware and whether it is idle; takes two seconds."""
        report = cls(options, machine, idle_remark(measure_busy_ratio()))
        options.output_dir.mkdir(parents=True, exist_ok=True)
        print(f"{machine}\n{report.idle}", flush=True)
        return report

    def end(self, text: str, targets: Sequence[Target], **measured: object) -> int:
        """Print `text` and a verdict per target, and write what was measured; returns the exit code."""
        print("\n".join((text, *(target.verdict() for target in targets))))
        options = {name: str(value) for name, value in vars(self.options).items()}
        record = {"machine": self.machine, "idle": self.idle, "options": options, **measured}
        (self.options.output_dir / "results.json").write_text(json.dumps(record) + "\n")
        return 0 if all(target.reached for target in targets) else 1


def machine_line() -> str:
    """The hardware, in a line."""
    model = cpu_model(Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return f"{model}, {len(os.sched_getaffinity(0))} cores"
