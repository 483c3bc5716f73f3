"""`warmfleet doctor --parity`: what it prints, and when it fails."""

import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from warmfleet_cli.__main__ import app
from warmfleet_cli.doctor import command
from warmfleet_cli.errors import ExitCode
from warmfleet_testing.engine.tiny_models import tiny_model_folder
from warmfleet_worker.parity.report import Divergence, LayerDifference, ParityReport

SOUND = LayerDifference(name="0", difference=0.5, largest_value=34.0, own_difference=0.25, of_bound=0.2)
REPORT = ParityReport(
    model="/models/tiny",
    dtype="BFloat16",
    device="cpu",
    kernels="AVX-512-BF16",
    epsilon=2**-7,
    factor=8.5,
    prompt_tokens=47,
    answer_tokens=24,
    layers=[SOUND, msgspec.structs.replace(SOUND, name="head", of_bound=0.1)],
    divergence=None,
    smallest_gap=0.046,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMFLEET_HOME", str(tmp_path))


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments])


def reported(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str, **changes: Any) -> Result:
    report = msgspec.structs.replace(REPORT, **changes)
    monkeypatch.setattr(command, "measure_parity", lambda _path, _dtype: report)
    return doctor("--parity", str(folder), *arguments)


def test_a_model_is_compared_layer_by_layer_in_a_process_of_its_own(folder: Path) -> None:
    result = doctor("--parity", str(folder), "--dtype", "Float32", "--output", "json")

    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["explained"] is True
    assert document["unexplained"] == []
    report = document["report"]
    assert (report["dtype"], report["prompt_tokens"], report["answer_tokens"]) == ("Float32", 45, 24)
    assert [layer["name"] for layer in report["layers"]] == ["embedding", "0", "1", "head"]
    assert 0 < report["layers"][1]["of_bound"] < 1
    assert report["divergence"] is None


def test_the_table_has_every_layer_and_what_the_bound_is(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    result = reported(monkeypatch, folder)

    assert result.exit_code == 0
    assert "BFloat16 on cpu by AVX-512-BF16: 47 tokens of prompt" in result.stdout
    assert "5.00e-01       3.40e+01        2.50e-01     0.200" in result.stdout
    assert "All 24 tokens of the answer are those of float64" in result.stdout
    assert "Rounding explains every layer: 0.200 of the bound at most, in 0." in result.stdout
    assert "8.5 times the root of the squares of its roundings, each of 3.9e-03" in result.stdout


def test_a_token_that_differs_is_shown_and_is_no_failure_while_rounding_explains_it(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    differs = Divergence(index=9, engine_token_id=42, reference_token_id=2724, gap=0.13, difference=0.55)
    result = reported(monkeypatch, folder, divergence=differs)

    assert result.exit_code == 0
    assert "differs first at token 9: 42 instead of 2724" in result.stdout
    assert "a gap of 1.30e-01" in result.stdout


@pytest.mark.parametrize("of_bound", [1.01, 1e300])
def test_a_layer_that_rounding_does_not_explain_fails(
    monkeypatch: pytest.MonkeyPatch, folder: Path, of_bound: float
) -> None:
    wrong = msgspec.structs.replace(SOUND, name="17", of_bound=of_bound)
    shown = reported(monkeypatch, folder, layers=[SOUND, wrong])
    record = reported(monkeypatch, folder, "--output", "json", layers=[SOUND, wrong])

    assert shown.exit_code == record.exit_code == ExitCode.FAILED
    assert "Rounding does not explain: 17." in shown.stdout
    assert ">1000" in shown.stdout or of_bound < 2
    assert json.loads(record.stdout)["unexplained"] == ["17"]


@pytest.mark.parametrize(
    ("exit_code", "stdout", "stderr", "code", "text"),
    [
        (
            2,
            b"",
            b"a log line\nmodel.safetensors: is missing\n",
            ExitCode.MODEL,
            "error: model.safetensors: is missing",
        ),
        (-9, b"", b"", ExitCode.FAILED, "exit code -9"),
        (0, b"{}", b"", ExitCode.FAILED, "required field"),
        (1, b"", b"Traceback\nMemoryError\n", ExitCode.FAILED, "Traceback; MemoryError"),
    ],
)
def test_a_process_that_ends_without_a_report_is_shown_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    exit_code: int,
    stdout: bytes,
    stderr: bytes,
    code: ExitCode,
    text: str,
) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, exit_code, stdout, stderr)

    monkeypatch.setattr("warmfleet_cli.doctor.parity.subprocess.run", run)

    result = doctor("--parity", str(folder))

    assert result.exit_code == code
    assert text in result.stderr


def test_what_cannot_be_compared_is_refused_in_words(folder: Path) -> None:
    cases = {
        ("--parity",): (ExitCode.MODEL, "is not on this machine"),
        ("--parity", str(folder), "--dtype", "Int4"): (ExitCode.USAGE, "--dtype"),
        (str(folder),): (ExitCode.USAGE, "only --parity"),
        ("--dtype", "Float32"): (ExitCode.USAGE, "only --parity"),
    }
    for arguments, (code, text) in cases.items():
        result = doctor(*arguments)
        assert result.exit_code == code, (arguments, result.output)
        assert text in result.stderr, (arguments, result.stderr)
