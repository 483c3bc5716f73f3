"""Starts the comparison of an engine's arithmetic with the reference, which needs torch, and prints it."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_cli.output import print_table
from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_worker.parity.report import ParityReport

_REFUSED: Final = 2
"""Exit code of a process that states its reason in one line."""
_LAST_LINES: Final = 5
_MOST_SHOWN: Final = 1000
"""A larger share of the bound means the same."""


def measure_parity(model_path: Path, dtype: str) -> ParityReport:
    """Compare in a process of its own.

    Raises:
        CliError: the model cannot be computed here.
    """
    command = [sys.executable, "-m", "warmfleet_worker.parity", "--model", str(model_path), "--dtype", dtype]
    done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - our own module
    errors = done.stderr.decode(errors="replace").strip().splitlines()
    if done.returncode == _REFUSED:
        raise CliError(errors[-1] if errors else "the model was refused", exit_code=ExitCode.MODEL)
    try:
        if done.returncode == 0:
            return msgspec.json.decode(done.stdout, type=ParityReport)
    except UNDECODABLE as error:
        errors.append(str(error))
    last = "; ".join(errors[-_LAST_LINES:])
    raise CliError(f"the comparison ended with exit code {done.returncode}: {last}")


def print_parity(console: Console, report: ParityReport) -> None:
    """The table of layers, the first token that differs, and what it means."""
    console.print(
        f"{report.dtype} on {report.device} by {report.kernels}: {report.prompt_tokens} tokens of prompt, "
        f"{report.answer_tokens} of a greedy answer, against float64 with the same weights"
    )
    console.print()
    rows = [
        [
            layer.name,
            f"{layer.difference:.2e}",
            f"{layer.largest_value:.2e}",
            f"{layer.own_difference:.2e}",
            f"{layer.of_bound:.3f}" if layer.of_bound < _MOST_SHOWN else f">{_MOST_SHOWN}",
        ]
        for layer in report.layers
    ]
    columns = ["LAYER", ">DIFFERENCE", ">LARGEST VALUE", ">OWN DIFFERENCE", ">OF BOUND"]
    print_table(console, columns, rows)
    console.print()
    console.print(_answer_line(report))
    if report.is_explained:
        worst = max(report.layers, key=lambda layer: layer.of_bound)
        console.print(
            f"Rounding explains every layer: {worst.of_bound:.3f} of the bound at most, in {worst.name}. "
            f"The bound is {report.factor:.1f} times the root of the squares of its roundings, each of "
            f"{report.epsilon / 2:.1e} of a value."
        )
    else:
        console.print(f"Rounding does not explain: {', '.join(report.unexplained)}.")


def _answer_line(report: ParityReport) -> str:
    differs = report.divergence
    if differs is None:
        return (
            f"All {report.answer_tokens} tokens of the answer are those of float64; "
            f"its smallest gap between the two highest scores is {report.smallest_gap:.2e}."
        )
    return (
        f"The answer differs first at token {differs.index}: {differs.engine_token_id} instead of "
        f"{differs.reference_token_id}, where float64 has a gap of {differs.gap:.2e} between the two highest "
        f"scores and ours differ from its by up to {differs.difference:.2e}."
    )
