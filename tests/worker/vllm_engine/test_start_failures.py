"""A start of vLLM that fails has a reason with sizes: of its own processes, which only log it."""

import logging
import sys

import pytest

from warmfleet_testing.engine.worker_process import running_worker, tiny_served_model
from warmfleet_worker.engine.messages import EngineFailed
from warmfleet_worker.settings import EngineSettings
from warmfleet_worker.vllm_engine.arguments import UnfitSettingsError
from warmfleet_worker.vllm_engine.process import _failure
from warmfleet_worker.vllm_engine.start_failures import (
    Failure,
    Sizes,
    flags_naming,
    note_failures,
    noted_failures,
    require_memory,
    start_error,
)
from warmfleet_worker.vllm_engine.versions import accepted_versions

SIZES = Sizes(weights_bytes=2**29, kv_cache_bytes=3 * 2**30, device_memory_percent=0, limit_bytes=2**31)
SIZES_TEXT = (
    "the model's files have 512.0 MiB, the KV cache takes 3.0 GiB, and the processes of this worker may use "
    "2.0 GiB of the machine's memory"
)
NO_CORE = RuntimeError(
    "Engine core initialization failed. See root cause above. Failed core proc(s): {'E': 1}"
)
KILLED = RuntimeError("Engine core initialization failed. Failed core proc(s): {'EngineCore': -9}")
ENDED_JUST_NOW = RuntimeError("Engine core initialization failed. Failed core proc(s): {}")
OUT_OF_MEMORY = Failure(
    "OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 GiB.", is_refusal=False
)
NO_ROOM = Failure("ValueError", "Available memory (1.2/8.0 GiB) is less than requested.", is_refusal=True)
BAD_VALUE = Failure("ValueError", "Model architectures ['X'] are not supported.", is_refusal=True)
BROKEN = Failure("RuntimeError", "operator missing", is_refusal=False)


class VLLMError(Exception):
    """As vLLM's: the base of its own errors, and no `ValueError`."""


class VLLMClientError(VLLMError):
    pass


class VLLMServerError(VLLMError):
    pass


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--seed", "7", "--scheduler-cls", "nope.X"], "--scheduler-cls nope.X"),
        (["--scheduler-cls=nope.X"], "--scheduler-cls=nope.X"),
        (["-q", "nope"], "nope"),
        (["--seed", "7"], ""),
    ],
)
def test_a_module_that_there_is_not_comes_with_the_flag_that_names_it(words, named):
    error = ModuleNotFoundError("No module named 'nope'")
    assert flags_naming(error, words) == named
    reason = str(start_error(error, [], SIZES, flags_naming(error, words)))
    assert reason.endswith(f"; engine.extraArgs has {named}" if named else "named 'nope'")


@pytest.mark.parametrize(
    ("error", "failures", "reason", "refused"),
    [
        (
            NO_CORE,
            [OUT_OF_MEMORY],
            f"vLLM ran out of memory at the start: {OUT_OF_MEMORY.text}; {SIZES_TEXT}",
            True,
        ),
        (
            NO_CORE,
            [BROKEN, OUT_OF_MEMORY],
            f"vLLM ran out of memory at the start: {OUT_OF_MEMORY.text}; {SIZES_TEXT}",
            True,
        ),
        (
            NO_CORE,
            [Failure("RuntimeError", "DefaultCPUAllocator: can't allocate memory", is_refusal=False)],
            f"vLLM ran out of memory at the start: DefaultCPUAllocator: can't allocate memory; {SIZES_TEXT}",
            True,
        ),
        (NO_CORE, [NO_ROOM], f"vLLM refuses the settings: {NO_ROOM.text}; {SIZES_TEXT}", True),
        (NO_CORE, [BAD_VALUE, BROKEN], f"vLLM refuses the settings: {BAD_VALUE.text}", True),
        (NO_CORE, [BROKEN], "vLLM did not start: RuntimeError: operator missing", False),
        (NO_CORE, [], f"vLLM did not start: RuntimeError: {NO_CORE}", False),
        (ValueError("block_size must\n be 32"), [], "vLLM refuses the settings: block_size must be 32", True),
        (
            ImportError("No module named 'nope'"),
            [],
            "vLLM refuses the settings: No module named 'nope'",
            True,
        ),
        (AttributeError("no attribute 'X'"), [], "vLLM refuses the settings: no attribute 'X'", True),
        (VLLMClientError("no such task"), [], "vLLM refuses the settings: no such task", True),
        (VLLMServerError("gone"), [], "vLLM did not start: VLLMServerError: gone", False),
        *(
            (
                error,
                [],
                f"one of vLLM's processes was killed at the start, most likely for memory: {SIZES_TEXT}",
                False,
            )
            for error in (KILLED, ENDED_JUST_NOW)
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_reason_is_the_cause_with_sizes_where_it_is_of_memory(error, failures, reason, refused):
    made = start_error(error, failures, SIZES)
    assert _failure(made) == EngineFailed(reason=reason, refused=refused)


@pytest.fixture
def log_records():
    make = logging.getLogRecordFactory()
    yield
    logging.setLogRecordFactory(make)


def logged(error):
    try:
        raise error
    except type(error):
        logging.getLogger("vllm.v1.engine.core").exception("EngineCore failed to start.")


@pytest.mark.usefixtures("log_records")
def test_what_a_process_of_vllm_logs_as_its_failure_reaches_ours(tmp_path):
    path = tmp_path / "failures"
    assert noted_failures(path) == []
    note_failures({"WARMFLEET_VLLM_FAILURES": str(path)})
    logging.getLogger("vllm").warning("no failure")
    logged(ValueError("two\nlines"))
    logged(MemoryError("a" * 5000))

    first, second = noted_failures(path)
    assert first == Failure("ValueError", "two lines", is_refusal=True)
    assert (second.kind, len(second.text), second.is_of_memory) == ("MemoryError", 1000, True)

    for _ in range(500):
        logged(ValueError("b" * 1000))
    assert path.stat().st_size < 70_000
    path.write_bytes(b"no json\n" + path.read_bytes()[:100_000])
    assert noted_failures(path)[0] == first


@pytest.mark.usefixtures("log_records")
def test_without_a_file_none_is_written():
    before = logging.getLogRecordFactory()
    note_failures({})
    assert logging.getLogRecordFactory() is before


def test_a_start_whose_weights_and_cache_cannot_fit_is_refused_at_once(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(bytes(2**20))
    (tmp_path / "b.safetensors").write_bytes(bytes(2**20))
    sizes = Sizes.of(EngineSettings(model_path=str(tmp_path), kv_cache_bytes=6 * 2**20), 8 * 2**20)
    require_memory(sizes)
    short = Sizes.of(EngineSettings(model_path=str(tmp_path), kv_cache_bytes=6 * 2**20 + 1), 8 * 2**20)
    with pytest.raises(
        UnfitSettingsError, match=r"have 2.0 MiB, the KV cache takes 6.0 MiB.* may use 8.0 MiB"
    ):
        require_memory(short)


def test_a_share_of_the_device_is_named_as_such():
    text = str(Sizes.of(EngineSettings(model_path="/m", device_memory_percent=90), 2**31))
    assert "90 % of the device are for weights and KV cache" in text


@pytest.mark.parametrize("version", ["0.11.0", "1.2.3"])
def test_another_version_is_named_before_anything_of_it_is_imported(tmp_path, version):
    model = tiny_served_model(tmp_path / "model")
    installed = tmp_path / "packages"
    (installed / "vllm").mkdir(parents=True)
    (installed / "vllm" / "__init__.py").write_text("raise SystemExit('imported')")
    information = installed / f"vllm-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    environment = {"WARMFLEET_VLLM_PYTHON": sys.executable, "PYTHONPATH": str(installed)}
    flags = ("--engine-type", "VLLM", "--block-size-tokens", "32")
    with running_worker(model, *flags, environment=environment, wait=False) as worker:
        assert worker.process.wait(120) == 2
        reasons = [line.get("reason", "") for line in worker.log_lines()]
    refusal = f"vLLM {version} is installed, warmfleet works with {accepted_versions()}"
    assert any(refusal in one for one in reasons)
