"""`warmfleet doctor` without a flag: ten lines about a machine, each judged, with what to do."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from warmfleet_cli.__main__ import app
from warmfleet_cli.doctor import command
from warmfleet_cli.doctor.checks import Check, State, machine_checks
from warmfleet_cli.doctor.facts import MachineFacts, read_facts
from warmfleet_cli.errors import ExitCode
from warmfleet_worker.vllm_engine.versions import NEWEST_VERSION, accepted_versions

GIB = 2**30
VLLM_VERSION = ".".join(map(str, (*NEWEST_VERSION, 0)))
OTHER_VLLM = f"vLLM 0.1.0 is installed, warmfleet works with {accepted_versions()}"
GOOD = MachineFacts(
    machine="x86_64",
    cpu="AMD EPYC 9R14",
    cpu_flags=frozenset(
        ["avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "avx512_vnni", "f16c"]
    ),
    cores=8,
    machine_bytes=32 * GIB,
    limit_bytes=32 * GIB,
    available_bytes=20 * GIB,
    huge_pages="madvise",
    compiler="/usr/bin/cc",
    torch_version="2.15.0",
    nvidia_devices=("NVIDIA L4",),
    vllm_python="/opt/vllm/bin/python",
    vllm_version=VLLM_VERSION,
    home=Path("/home/ann/.cache/warmfleet"),
    is_home_writable=True,
    free_bytes=50 * GIB,
    models=("smollm2-135m-instruct",),
)


def lines(**changes: Any) -> dict[str, Check]:
    return {check.name: check for check in machine_checks(replace(GOOD, **changes), "warmfleet 1, Python 3")}


def test_a_good_machine_has_ten_lines_and_nothing_to_do() -> None:
    assert len(lines()) == 10
    assert {(check.state, check.advice) for check in lines().values()} == {(State.OK, "")}
    assert lines()["cpu"].found == "AMD EPYC 9R14, 8 cores, AVX2, AVX-512, AVX-512-BF16"


@pytest.mark.parametrize(
    ("name", "changes", "state", "found", "advice"),
    [
        ("cpu", {"cpu_flags": frozenset({"avx2"})}, State.NOTE, "no AVX2", "processor with AVX2"),
        ("memory", {"available_bytes": GIB // 4}, State.BAD, "0.2 GiB available", "end other processes"),
        ("memory", {"limit_bytes": 4 * GIB}, State.OK, "this process may use 4.0 GiB", ""),
        ("memory", {"available_bytes": None}, State.OK, "32.0 GiB", ""),
        ("huge pages", {"huge_pages": "never"}, State.NOTE, "never", "transparent_hugepage/enabled"),
        ("huge pages", {"huge_pages": ""}, State.NOTE, "not supported", "transparent_hugepage/enabled"),
        ("compiler", {"compiler": ""}, State.NOTE, "no C compiler", "apt-get install gcc"),
        ("torch", {"torch_version": ""}, State.BAD, "not installed", "make setup"),
        ("devices", {"nvidia_devices": ()}, State.OK, "no NVIDIA device", ""),
        ("devices", {"nvidia_devices": ("L4", "L4")}, State.OK, "2, the first L4", ""),
        ("vllm", {"vllm_python": "", "vllm_version": ""}, State.OK, "not installed", "make vllm"),
        ("vllm", {"vllm_version": "0.1.0"}, State.BAD, "0.1.0, /opt/vllm/bin/python", OTHER_VLLM),
        ("vllm", {"vllm_version": ""}, State.NOTE, "of unknown version, /opt/vllm/bin/python", "make vllm"),
        ("models", {"models": ()}, State.OK, "none of the catalog", "warmfleet up"),
        ("disk", {"free_bytes": 9, "models": ()}, State.BAD, "0.0 GiB free", "a pull needs 0.7 GiB"),
        ("disk", {"free_bytes": 9}, State.NOTE, "0.0 GiB free", "WARMFLEET_HOME"),
        ("disk", {"is_home_writable": False}, State.BAD, "cannot be written", "WARMFLEET_HOME"),
    ],
)
def test_each_line_is_judged_with_what_to_do(
    name: str, changes: dict[str, Any], state: State, found: str, advice: str
) -> None:
    check = lines(**changes)[name]

    assert check.state is state
    assert found in check.found
    assert advice in check.advice
    assert bool(check.advice) == bool(advice)


def test_facts_are_read_from_the_kernels_files(tmp_path: Path) -> None:
    files = {
        "proc/cpuinfo": "model name\t: Xeon 8488C\nflags\t\t: avx2 f16c amx_tile amx_bf16 fma\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n",
        "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA L4\nIRQ: 7\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    compiler = tmp_path / "bin" / "clang"
    compiler.parent.mkdir()
    compiler.touch(0o755)
    python = tmp_path / "vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    (tmp_path / f"vllm/lib/python3.12/site-packages/vllm-{VLLM_VERSION}.dist-info").mkdir(parents=True)
    environment = {"PATH": str(compiler.parent), "WARMFLEET_VLLM_PYTHON": str(python)}

    facts = read_facts(tmp_path / "no" / "home", environment, tmp_path)

    assert facts.cpu == "Xeon 8488C"
    assert lines(cpu_flags=facts.cpu_flags)["cpu"].found.endswith("AVX2, AMX-BF16")
    assert facts.huge_pages == "never"
    assert facts.nvidia_devices == ("NVIDIA L4",)
    assert facts.compiler == str(compiler)
    assert (facts.vllm_version, facts.vllm_python) == (VLLM_VERSION, str(python))
    assert facts.models == ()
    assert facts.free_bytes > 0


def test_a_machine_without_any_of_it_is_read_too(tmp_path: Path) -> None:
    facts = read_facts(tmp_path, {"PATH": str(tmp_path), "CC": "ccache gcc"}, tmp_path)

    assert (facts.cpu, facts.cpu_flags, facts.huge_pages, facts.compiler) == ("", frozenset(), "", "")
    assert len(machine_checks(facts, "warmfleet 1")) == 10


def test_the_command_prints_a_table_or_json_and_fails_where_no_worker_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARMFLEET_HOME", str(tmp_path))
    monkeypatch.setattr(command, "read_facts", lambda _home: GOOD)
    shown = CliRunner().invoke(app, ["doctor"])
    monkeypatch.setattr(command, "read_facts", lambda _home: replace(GOOD, torch_version=""))
    record = CliRunner().invoke(app, ["doctor", "--output", "json"])

    assert shown.exit_code == 0
    assert [line.split()[0] for line in shown.stdout.splitlines()[:3]] == ["CHECK", "versions", "cpu"]
    assert record.exit_code == ExitCode.FAILED
    found = {check["name"]: check for check in json.loads(record.stdout)["checks"]}
    assert found["torch"] == {
        "name": "torch",
        "state": "bad",
        "found": "not installed",
        "advice": "make setup, or pip install 'warmfleet[worker]'",
    }
