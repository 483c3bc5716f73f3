"""Starts that cannot succeed: the worker ends by itself, and its log has the reason in the user's terms."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from warmfleet_testing.engine.worker_process import tiny_served_model
from warmfleet_testing.processes.tested_engines import OWN, VLLM, EngineUnderTest, only_with
from warmfleet_worker.vllm_engine.versions import NEWEST_VERSION, OLDEST_VERSION, accepted_versions

VLLM_FLAGS: Final = "vLLM's own flags"
VERSIONS: Final = "versions of the engine"
TOO_OLD: Final = f"{OLDEST_VERSION[0]}.{OLDEST_VERSION[1] - 1}.2"
TOO_NEW: Final = f"{NEWEST_VERSION[0]}.{NEWEST_VERSION[1] + 1}.0"
SIZES: Final = ("MiB", "GiB")
"""What a message about memory has to name."""


@dataclass(frozen=True)
class Refusal:
    """A start with `flags`, and what its reason holds with each engine."""

    own: tuple[str, ...]
    vllm: tuple[str, ...]
    flags: tuple[str, ...] = ()
    model_fields: Mapping[str, object] = field(default_factory=dict)
    """Changed in the model's `config.json`."""
    environment: Callable[[Path], Mapping[str, str]] = lambda _: {}

    def reasons(self, engine: EngineUnderTest) -> tuple[str, ...]:
        return self.vllm if engine.is_vllm else self.own


@pytest.fixture(scope="module")
def model(engine: EngineUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_served_model(tmp_path_factory.mktemp("model"), **engine.model_fields)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        yield port


def output_of_refused_start(
    engine: EngineUnderTest, model: Path, *flags: str, environment: Mapping[str, str] = {}
) -> str:
    """All that a worker writes; it has to end by itself, with an error's exit code."""
    fixed = ("--model", str(model), "--served-name", "tiny", "--dtype", "Float32", "--threads", "1")
    ended = subprocess.run(
        [sys.executable, "-m", "warmfleet_worker", *fixed, *engine.flags, "--port", "0", *flags],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=engine.start_seconds,
        check=False,
    )
    assert ended.returncode in {1, 2}, ended
    assert "Traceback" not in ended.stdout
    return ended.stdout + ended.stderr


def installed_version(folder: Path, version: str) -> dict[str, str]:
    """An environment in which vLLM's own description has another version."""
    description = folder / f"vllm-{version}.dist-info" / "METADATA"
    description.parent.mkdir(parents=True)
    description.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    found = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": found}


BOTH: Final = {
    "more memory than there is": Refusal(
        flags=("--kv-cache-bytes", str(2**46)),
        own=("the engine needs 655", "may use", *SIZES),
        vllm=("vLLM would run out of memory: the model's files have ", *SIZES),
    ),
    "a cache that is too small": Refusal(
        flags=("--kv-cache-bytes", "1024"),
        own=("the KV cache of 1024 bytes is smaller than one block",),
        vllm=("vLLM refuses the settings: ",),
    ),
    "a model that the engine refuses": Refusal(
        model_fields={"architectures": ["UnheardOfForCausalLM"], "model_type": "unheard_of"},
        own=("architecture UnheardOfForCausalLM is not one of ",),
        vllm=("vLLM refuses the settings: ", "unheard_of"),
    ),
}
VLLMS: Final = {
    "block size 16": Refusal(
        flags=("--block-size-tokens", "16"),
        own=(),
        vllm=("not 16: set kvCache.blockSizeTokens (--block-size-tokens) to 32",),
    ),
    "a flag that it does not know": Refusal(
        flags=("--engine-argument=--nope",),
        own=(),
        vllm=("engine.extraArgs: vLLM refuses them: unrecognized arguments: --nope",),
    ),
    "a flag that contradicts a field": Refusal(
        flags=("--engine-argument=-tp=2",),
        own=(),
        vllm=("--tensor-parallel-size 2 contradicts accelerator.count",),
    ),
    "events switched off": Refusal(
        flags=('--engine-argument=--kv-events-config={"enable_kv_cache_events":false}',),
        own=(),
        vllm=("--kv-events-config", "contradicts warmfleet"),
    ),
    "a version that is too old": Refusal(
        environment=lambda folder: installed_version(folder, TOO_OLD),
        own=(),
        vllm=(f"vLLM {TOO_OLD} is installed, warmfleet works with {accepted_versions()}",),
    ),
    "a version that is too new": Refusal(
        environment=lambda folder: installed_version(folder, TOO_NEW),
        own=(),
        vllm=(f"vLLM {TOO_NEW} is installed, warmfleet works with {accepted_versions()}",),
    ),
}


@pytest.mark.parametrize("fault", BOTH)
def test_a_start_that_cannot_succeed_has_its_reason(
    engine: EngineUnderTest, model: Path, fault: str, tmp_path: Path
) -> None:
    refusal = BOTH[fault]
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((model / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **refusal.model_fields}))

    output = output_of_refused_start(engine, tmp_path, *refusal.flags)

    assert [part for part in refusal.reasons(engine) if part not in output] == [], output


@only_with(VLLM, difference=VLLM_FLAGS)
@pytest.mark.parametrize("fault", [name for name in VLLMS if "version" not in name and "16" not in name])
def test_a_flag_of_vllm_that_cannot_be_has_its_reason(
    engine: EngineUnderTest, model: Path, fault: str
) -> None:
    refusal = VLLMS[fault]

    output = output_of_refused_start(engine, model, *refusal.flags)

    assert [part for part in refusal.vllm if part not in output] == [], output


@only_with(VLLM, difference="kvCache.blockSizeTokens")
def test_a_block_size_that_vllm_does_not_take_on_a_cpu_is_refused_with_those_that_it_takes(
    engine: EngineUnderTest, model: Path
) -> None:
    refusal = VLLMS["block size 16"]

    output = output_of_refused_start(engine, model, *refusal.flags)

    assert [part for part in refusal.vllm if part not in output] == [], output


@only_with(VLLM, difference=VERSIONS)
@pytest.mark.parametrize("fault", [name for name in VLLMS if "version" in name])
def test_another_version_than_those_that_were_tested_is_refused_by_name(
    engine: EngineUnderTest, model: Path, fault: str, tmp_path: Path
) -> None:
    refusal = VLLMS[fault]

    output = output_of_refused_start(engine, model, environment=refusal.environment(tmp_path))

    assert [part for part in refusal.vllm if part not in output] == [], output


@only_with(OWN, difference=VLLM_FLAGS)
def test_flags_of_vllm_are_refused_by_warmfleets_own_engine(engine: EngineUnderTest, model: Path) -> None:
    output = output_of_refused_start(engine, model, "--engine-argument=--kv-cache-dtype=fp8")

    assert "--engine-argument: arguments are vLLM's, and --engine-type is Warmfleet" in output


def test_a_port_that_is_taken_ends_the_worker_before_it_loads_anything(
    engine: EngineUnderTest, model: Path, taken_port: int
) -> None:
    output = output_of_refused_start(engine, model, "--port", str(taken_port))

    assert str(taken_port) in output
    assert "in use" in output
