"""The command from end to end, on a tiny seeded model: our engine's process, and others that are missing."""

import asyncio
import json
import re
from typing import get_args

import pytest
from typer.testing import CliRunner

from warmfleet_cli.__main__ import app
from warmfleet_cli.bench import report
from warmfleet_cli.bench.app import CpuKernels
from warmfleet_cli.bench.engine import benchmark, run
from warmfleet_cli.bench.engine import reads_program as reads_module
from warmfleet_cli.bench.engine.case_loop import measured_steps
from warmfleet_cli.bench.engine.cases import Case
from warmfleet_cli.bench.engine.model import EngineModel, RandomShape
from warmfleet_cli.bench.engine.own_program import OwnEngine
from warmfleet_cli.bench.engine.programs import (
    NO_CHANGE,
    NO_GPU,
    EngineFailed,
    Program,
    llama_program,
    reads_program,
    running,
)
from warmfleet_cli.bench.engine.random_model import SHAPES
from warmfleet_cli.bench.engine.transformers_program import TransformersEngine
from warmfleet_cli.errors import ExitCode
from warmfleet_testing.engine.tiny_models import tiny_model_folder
from warmfleet_worker.engine.roofline import MachineLimits
from warmfleet_worker.model.config import load_model_config
from warmfleet_worker.roofline.measurement import MIN_BUFFER_BYTES, NotMeasurable
from warmfleet_worker.settings import CpuKernels as KernelNames

LIMITS = MachineLimits(
    read_bytes_per_second=2e10,
    read_threads=2,
    buffer_bytes=2**31,
    bfloat16_flops_per_second=1e12,
    float32_flops_per_second=1e11,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model_folder("llama", tmp_path_factory.mktemp("models") / "tiny", model_type="llama")


@pytest.mark.parametrize("kernels", ["Auto", "Torch"])
def test_our_engine_has_the_blocks_of_its_cases_in_the_dtype_of_its_kernels(folder, kernels):
    engine = OwnEngine(folder, "Auto", "None", kernels, blocks=24)

    assert engine.blocks == 24


@pytest.fixture
def bench_engine(folder, tmp_path, monkeypatch):
    """The command on an idle machine of known limits, on which llama.cpp is not installed."""

    async def limits(environment):
        assert environment == NO_GPU
        return LIMITS

    monkeypatch.setattr(benchmark, "measured_limits", limits)
    monkeypatch.setattr(
        benchmark,
        "reads_program",
        lambda of_cases, threads, _: reads_program(of_cases, threads, MIN_BUFFER_BYTES),
    )
    monkeypatch.setattr(report, "measure_busy_ratio", lambda: 0.0)
    monkeypatch.setattr(
        run,
        "llama_program",
        lambda gguf, cases, on_gpu: llama_program(gguf, cases, tmp_path / "none", on_gpu=on_gpu),
    )
    always = ("--model-path", str(folder), "--output-dir", str(tmp_path), "--prefill-tokens", "48", "--cpu")
    return lambda *options: CliRunner().invoke(app, ["bench", "engine", *always, *options])


def test_the_command_measures_every_case_and_names_what_is_missing(bench_engine, tmp_path):
    result = bench_engine(
        *("--engines", "warmfleet,llama.cpp", "--batches", "1,2", "--contexts", "32,960,2048"),
        *("--rounds", "2", "--steps", "3", "--output", "json", "--dtype", "Float32"),
    )

    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record == json.loads((tmp_path / "engine.json").read_text())
    assert [(case["case"], case["engine"], len(case["step_seconds"])) for case in record["cases"]] == [
        *(
            (case, engine, 6)
            for case in ("decode 1 x 32", "decode 2 x 32", "decode 1 x 960", "decode 2 x 960")
            for engine in ("warmfleet", "reads alone")
        ),
        ("prefill 48", "warmfleet", 6),
    ]
    assert record["engines"]["reads alone"] == "0.12 GiB of memory, no products"
    # Each case is shown when its first round has been measured, for those who end it early.
    shown = re.findall(r"^(.+), first round, tokens/s: warmfleet [\d,]+\.\d", result.stderr, re.MULTILINE)
    assert shown == [case["case"] for case in record["cases"][::2]]
    assert record["missing"] == {"llama.cpp": "not installed: make peers"}
    assert record["skipped"] == {
        "decode 1 x 2048": "the model's limit is 1,024 tokens",
        "decode 2 x 2048": "the model's limit is 1,024 tokens",
    }
    assert "Float32" in record["engines"]["warmfleet"]
    assert (tmp_path / "engine-decode-32.svg").is_file()
    assert (tmp_path / "engine-prefill.svg").is_file()


def test_on_a_gpu_every_engine_may_use_it_and_llama_cpp_is_left_out(folder):
    choice = run.EngineChoice(run.ENGINES, (1,), (32,), 48, rounds=1, steps=3, dtype="Auto")
    model = EngineModel("tiny", folder, load_model_config(folder), folder / "none.gguf")

    for on_gpu, environment in ((True, NO_CHANGE), (False, NO_GPU)):
        settings = run.bench_settings(choice, model, 2**34, on_gpu=on_gpu)
        _, _, llama, _, vllm = settings.programs
        assert settings.environment == environment
        assert ("bfloat16" in vllm.arguments) or not on_gpu
        assert ("--cpu" in llama.missing) is on_gpu
    assert "CUDA_VISIBLE_DEVICES" not in NO_CHANGE


def test_our_engine_computes_with_the_kernels_that_are_named(folder):
    choice = run.EngineChoice(
        ("warmfleet", "warmfleet-int8"), (1,), (32,), 48, rounds=1, steps=3, dtype="Auto", cpu_kernels="AVX2"
    )
    model = EngineModel("tiny", folder, load_model_config(folder), folder / "none.gguf")

    own, int8 = run.bench_settings(choice, model, 2**34).programs

    assert own.arguments[1:4] == ("Auto", "None", "AVX2")
    assert int8.arguments[1:4] == ("Auto", "Int8", "AVX2")
    assert {kernels.value for kernels in CpuKernels} == set(get_args(KernelNames))


def test_weights_in_8_bits_are_an_engine_with_a_cost_of_its_own(bench_engine):
    result = bench_engine(
        *("--engines", "warmfleet-int8", "--batches", "1", "--contexts", "32"),
        *("--rounds", "1", "--steps", "3", "--output", "json", "--dtype", "Float32"),
    )

    record = json.loads(result.stdout)
    assert "Int8 weights" in record["engines"]["warmfleet-int8"]
    assert [case["engine"] for case in record["cases"]] == ["warmfleet-int8", "reads alone", "warmfleet-int8"]
    # Keys and values are of the type that is asked for, without an engine whose weights are.
    costs = record["model_costs"]
    assert {
        name: (cost["element_bytes"], cost["quantised_weight_bytes"]) for name, cost in costs.items()
    } == {
        "warmfleet": (4, 0),
        "warmfleet-int8": (4, 1.0625),
    }


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--engines", "warmfleet-int8", "--cpu-kernels", "Torch"), "warmfleet-int8: .*Int8"),
        (("--engines", "llama.cpp"), "llama.cpp: not installed: make peers"),
    ],
)
def test_a_run_without_an_engine_that_starts_is_an_error_with_every_reason(bench_engine, arguments, reason):
    result = bench_engine("--batches", "1", "--contexts", "32", *arguments)

    assert result.exit_code == ExitCode.START_FAILED
    assert re.search(reason, " ".join(result.stderr.split())), result.stderr


def test_every_engine_gets_what_decides_where_it_computes(tmp_path):
    module = tmp_path / "shows_environment.py"
    module.write_text(
        "import json, os; seen = os.environ['CUDA_VISIBLE_DEVICES']\n"
        "print(json.dumps({'name': 'x', 'dtype': 'y', 'variants': [seen]}))"
    )

    async def variants():
        program = Program("probe", "shows_environment", (), environment={"PYTHONPATH": str(tmp_path)})
        async with running(program, tmp_path, NO_GPU) as engine:
            return engine.variants

    assert asyncio.run(variants()) == [""]


def test_transformers_computes_the_same_cases_in_both_of_its_types(folder):
    engine = TransformersEngine(folder)

    assert engine.variants == ["bfloat16", "float32"]
    for variant in engine.variants:
        for case in (Case("decode", 2, 40), Case("prefill", 1, 32), Case("decode", 2, 40)):
            seconds, tokens = measured_steps(engine, case, variant, 3, 9.0)
            assert len(seconds) == 3
            assert len(tokens) == case.batch


def test_an_engine_that_ends_or_is_missing_is_an_error_with_its_reason(tmp_path):
    async def start(program):
        async with running(program, tmp_path):
            pass

    with pytest.raises(EngineFailed, match="it ended; its log has the reason"):
        asyncio.run(start(Program("broken", "warmfleet_no_such_module", ())))
    with pytest.raises(EngineFailed, match="not installed: make peers"):
        asyncio.run(start(llama_program(tmp_path, (), tmp_path / "none")))


class Reader:
    """Notes what is read."""

    def __init__(self, size_bytes, *, cores):
        self.size_bytes, self.cores, self.reads = size_bytes, cores, []

    def fill(self, offset, length):
        assert (offset, length) == (0, self.size_bytes)

    def read(self, offset, length, *, threads):
        self.reads.append((offset >> 20, length >> 20, threads))


def test_reads_alone_go_on_through_memory_that_no_cache_holds(monkeypatch):
    monkeypatch.setattr(reads_module, "MemoryReader", Reader)
    monkeypatch.setattr(reads_module, "free_buffer_bytes", lambda: 2**30)
    case = Case("decode", 1, 128)
    engine = reads_module.ReadsEngine({case.name: 96 << 20}, 2, 128 << 20)

    assert [engine.step(case, index) for index in range(3)] == [[], [], []]

    # Each step begins where the one before it ended.
    assert engine._reader.reads == [(0, 96, 2), (96, 32, 2), (0, 64, 2), (64, 64, 2), (0, 32, 2)]


def test_reads_alone_need_more_memory_than_a_cache_has(monkeypatch):
    monkeypatch.setattr(reads_module, "MemoryReader", Reader)
    monkeypatch.setattr(reads_module, "free_buffer_bytes", lambda: 96 << 20)
    with pytest.raises(NotMeasurable, match="96 MiB of memory are free for reads: too little"):
        reads_module.ReadsEngine({}, 2, 2**31)


def test_every_random_shape_is_known():
    assert set(SHAPES) == {shape.value for shape in RandomShape}


@pytest.mark.parametrize(
    ("flags", "on_gpu", "has_amx"),
    [("avx2 amx_bf16", False, True), ("avx2", False, False), ("amx_bf16", True, False)],
)
def test_twice_the_rate_of_vllm_is_asked_where_processors_with_amx_compute(
    folder, tmp_path, monkeypatch, flags, on_gpu, has_amx
):
    information = tmp_path / "cpuinfo"
    information.write_text(f"flags\t\t: {flags}\n")
    monkeypatch.setattr(run, "CPU_INFO", information)
    choice = run.EngineChoice(("warmfleet",), (1,), (32,), 48, rounds=1, steps=3, dtype="Auto")
    model = EngineModel("tiny", folder, load_model_config(folder), folder / "none.gguf")

    assert run.bench_settings(choice, model, 2**34, on_gpu=on_gpu).has_amx is has_amx
