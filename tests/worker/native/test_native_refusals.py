"""The native step refuses what it cannot compute by name, and PyTorch computes where it cannot run."""

import dataclasses
import os
import shutil
import stat
from array import array
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from warmfleet_testing.engine.tiny_models import tiny_model_folder
from warmfleet_testing.exact.model_steps import hidden_rows
from warmfleet_worker.engine.batch import Chunk
from warmfleet_worker.model.config import load_model_config
from warmfleet_worker.native import build, choice
from warmfleet_worker.native.build import NativeStepUnavailable, compile_library
from warmfleet_worker.native.choice import KernelsNotAvailable, NotNative, choose_native
from warmfleet_worker.native.levels import Level
from warmfleet_worker.native.library import NativeLibrary, NativeStepError, native_library
from warmfleet_worker.native.model import native_refusal
from warmfleet_worker.runner.runner import ModelRunner, load_runner
from warmfleet_worker.runner.runner_settings import RunnerSettings

MIB = 2**20


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_model_folder("llama", tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def runner(folder) -> ModelRunner:
    return load_runner(folder, RunnerSettings(kv_cache_bytes=MIB))


def test_the_default_is_the_native_step_in_bfloat16(runner):
    assert runner.exact
    assert runner.kernels != "torch"
    assert runner.dtype_name == "BFloat16"


@pytest.mark.parametrize(
    "chunk",
    [
        Chunk(1, [512], 0, [0], None),
        Chunk(1, [-1], 0, [0], None),
        Chunk(1, [1], 16, [0], None),
        Chunk(1, [1], 10**6, [0], None),
        Chunk(1, [1], 0, [10**6], None),
        Chunk(1, [1], 0, [-1], None),
    ],
    ids=["token", "negative token", "short table", "position", "block", "negative block"],
)
def test_a_step_outside_the_model_is_refused_and_the_next_one_is_computed(runner, chunk):
    with pytest.raises(NativeStepError, match="out of its range"):
        hidden_rows(runner.step_model, [chunk], ())

    hidden, finite = hidden_rows(runner.step_model, [Chunk(1, array("I", [1, 2]), 0, (0,), None)], [1])
    assert finite == [True]
    assert hidden.isfinite().all()


def test_without_a_compiler_pytorch_computes_in_float32(folder, monkeypatch):
    def missing():
        raise NativeStepUnavailable("it needs a C compiler")

    monkeypatch.setattr(choice, "native_library", missing)

    runner = load_runner(folder, RunnerSettings(kv_cache_bytes=MIB))

    assert (runner.kernels, runner.dtype_name, runner.exact) == ("torch", "Float32", False)
    with pytest.raises(KernelsNotAvailable, match="AVX2 kernels: it needs a C compiler"):
        load_runner(folder, RunnerSettings(kv_cache_bytes=MIB, cpu_kernels="AVX2"))


@pytest.mark.parametrize("setting", [{"cpu_kernels": "Torch"}, {"dtype": "Float64"}])
def test_quantised_weights_are_refused_by_name_where_pytorch_would_compute(folder, setting):
    settings = RunnerSettings(kv_cache_bytes=MIB, weight_quantization="Int8", **setting)

    with pytest.raises(
        KernelsNotAvailable, match="weight quantization Int8 is computed by the native step alone"
    ):
        load_runner(folder, settings)


@pytest.mark.parametrize("kernels", [level.option for level in Level])
def test_kernels_asked_for_by_name_run_or_are_refused(folder, kernels):
    config = load_model_config(folder)
    try:
        chosen = choose_native(kernels, "BFloat16", config, 16)
    except KernelsNotAvailable as error:
        assert f"{kernels} kernels: this machine runs" in str(error)  # noqa: PT017 - depends on the processor
    else:
        assert chosen.level.option == kernels


def test_a_user_who_names_no_kernels_gets_the_best_level(folder):
    chosen = choose_native("Auto", "BFloat16", load_model_config(folder), 16)

    levels = chosen.library.levels()
    assert chosen.level is max(level for level in levels if chosen.library.request_permission(level))
    assert chosen.not_permitted is (None if chosen.level is levels[-1] else levels[-1])


@pytest.mark.parametrize("levels", [1, 2])
def test_where_the_system_refuses_registers_a_level_below_computes_and_their_name_is_refused(
    folder, monkeypatch, levels
):
    config, best = load_model_config(folder), max(Level)
    monkeypatch.setattr(NativeLibrary, "levels", lambda *_: tuple(Level))
    refused = sorted(Level)[-levels:]
    monkeypatch.setattr(NativeLibrary, "request_permission", lambda _, level: level not in refused)

    chosen = choose_native("Auto", "BFloat16", config, 16)

    assert (chosen.level, chosen.not_permitted) == (sorted(Level)[-levels - 1], best)
    with pytest.raises(KernelsNotAvailable, match=f"the system does not let this process use {best.title}"):
        choose_native(best.option, "BFloat16", config, 16)


def test_the_log_states_that_the_system_refuses_registers(folder, monkeypatch):
    monkeypatch.setattr(NativeLibrary, "levels", lambda *_: (Level.AVX2, Level.AVX512))
    monkeypatch.setattr(NativeLibrary, "request_permission", lambda _, level: level is Level.AVX2)

    with capture_logs() as lines:
        runner = load_runner(folder, RunnerSettings(kv_cache_bytes=MIB))

    assert runner.kernels == "AVX2"
    refused = [line for line in lines if "refuses this process the registers" in line["event"]]
    assert [(line["log_level"], line["kernels"], line["refused"]) for line in refused] == [
        ("warning", "AVX2", "AVX-512")
    ]


def test_a_dtype_of_pytorch_alone_is_refused_only_where_kernels_are_named(folder):
    config = load_model_config(folder)

    by_dtype = choose_native("Auto", "Float64", config, 16)
    by_kernels = choose_native("Torch", "BFloat16", config, 16)

    assert by_dtype == NotNative("the native step computes BFloat16 and Float32, not Float64")
    assert by_kernels == NotNative("CPU kernels Torch are asked for")
    with pytest.raises(KernelsNotAvailable, match="not Float64"):
        choose_native("AVX2", "Float64", config, 16)


def test_a_compiler_that_fails_is_quoted(tmp_path):
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'x.c:1: error: no space left' >&2\nexit 1\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)

    with pytest.raises(NativeStepUnavailable, match="error: no space left"):
        compile_library(tmp_path / "out" / "library.so", [str(compiler)])
    assert list((tmp_path / "out").iterdir()) == []


def test_a_missing_compiler_and_a_folder_that_cannot_be_written_are_named(tmp_path, monkeypatch):
    with pytest.raises(NativeStepUnavailable, match="cannot be compiled into"):
        compile_library(tmp_path / "library.so", [str(tmp_path / "none")])

    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NativeStepUnavailable, match="needs a C compiler"):
        compile_library(tmp_path / "library.so")


def replace_content(library, content):
    """By a new file: the old one is mapped into this process."""
    library.unlink()
    library.write_bytes(content)
    library.chmod(0o755)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_part_of_a_library_is_compiled_again(tmp_path, monkeypatch, share):
    monkeypatch.setenv("WARMFLEET_HOME", str(tmp_path))
    library = build.library_path()
    replace_content(library, library.read_bytes()[: int(share * library.stat().st_size)])

    assert build.library_path() == library
    assert build.is_whole(library)
    NativeLibrary(library)


def test_a_library_that_others_may_have_written_is_compiled_again(tmp_path, monkeypatch):
    monkeypatch.setenv("WARMFLEET_HOME", str(tmp_path))
    library = build.library_path()
    before = library.stat().st_ino
    library.chmod(0o666)

    assert build.library_path() == library
    assert library.stat().st_ino != before
    assert stat.S_IMODE(library.stat().st_mode) == 0o755


def test_a_folder_that_others_may_write_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("WARMFLEET_HOME", str(tmp_path))
    build.library_path().parent.chmod(0o777)

    with pytest.raises(NativeStepUnavailable, match="others may write it"):
        build.library_path()


@pytest.mark.parametrize("umask", [0o002, 0o000, 0o077])
def test_a_library_is_used_with_any_umask(tmp_path, monkeypatch, umask):
    monkeypatch.setenv("WARMFLEET_HOME", str(tmp_path))
    before = os.umask(umask)
    try:
        library = build.library_path()
        modified = library.stat().st_mtime_ns

        assert build.library_path().stat().st_mtime_ns == modified
    finally:
        os.umask(before)


def test_what_a_compiler_made_and_cannot_be_loaded_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("WARMFLEET_HOME", str(tmp_path / "home"))
    broken = tmp_path / "cc"
    broken.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho junk > "$2"\n')
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))

    native_library.cache_clear()

    with pytest.raises(NativeStepUnavailable, match="cannot be loaded"):
        native_library()

    monkeypatch.delenv("CC")
    assert native_library().levels()
    native_library.cache_clear()


def test_a_library_of_another_system_in_a_shared_home_is_compiled_again(tmp_path, monkeypatch):
    monkeypatch.setenv("WARMFLEET_HOME", str(tmp_path))
    library = build.library_path()
    replace_content(library, b"of a newer system")
    build._append_digest(library)
    native_library.cache_clear()

    assert native_library().levels()
    native_library.cache_clear()


def test_a_compiler_variable_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", 'gcc "')

    with pytest.raises(NativeStepUnavailable, match=r"\$CC cannot be read"):
        compile_library(tmp_path / "library.so")


@pytest.mark.parametrize(
    "sizes",
    [
        {"heads": 8_388_608, "head_dim": 2, "kv_heads": 1},
        {"heads": 1, "head_dim": 1024},
        {"intermediate_size": 2**21},
        {"vocab_size": 2**25},
        {"max_position": 2**27},
    ],
)
def test_a_model_of_absurd_sizes_is_refused_by_the_native_step(folder, sizes):
    config = dataclasses.replace(load_model_config(folder), **sizes)

    assert native_refusal(config, 16)
    with pytest.raises(KernelsNotAvailable, match="cannot compute this model"):
        choose_native("AVX2", "BFloat16", config, 16)


def test_a_closed_model_computes_nothing(folder):
    closed = load_runner(folder, RunnerSettings(kv_cache_bytes=MIB)).step_model
    closed.close()

    with pytest.raises(NativeStepError):
        hidden_rows(closed, [Chunk(1, [1], 0, [0], None)], [0])
    with pytest.raises(NativeStepError):
        closed.logits(np.zeros((1, closed.config.hidden_size), np.float32))


@pytest.mark.parametrize("failing", ["map", "new_engine", "new_stepper"])
def test_a_model_that_cannot_be_made_leaves_no_memory_behind(folder, monkeypatch, failing):
    mapped: dict[int, int] = {}
    map_memory, unmap, fail = NativeLibrary.map, NativeLibrary.unmap, getattr(NativeLibrary, failing)

    def map_noted(self, size_bytes):
        address = map_memory(self, size_bytes)
        mapped[address] = size_bytes
        return address

    def unmap_noted(self, address, size_bytes):
        assert mapped.pop(address) == size_bytes
        unmap(self, address, size_bytes)

    def failing_at_last(self, *arguments):
        if failing == "map" and not mapped:  # the weights; then the arena fails
            return map_noted(self, *arguments)
        raise NativeStepError("there is not enough memory")

    monkeypatch.setattr(NativeLibrary, "map", map_noted)
    monkeypatch.setattr(NativeLibrary, "unmap", unmap_noted)
    monkeypatch.setattr(NativeLibrary, failing, failing_at_last)
    with pytest.raises(NativeStepError):
        load_runner(folder, RunnerSettings(kv_cache_bytes=MIB))
    assert mapped == {}

    monkeypatch.setattr(NativeLibrary, failing, map_noted if failing == "map" else fail)
    load_runner(folder, RunnerSettings(kv_cache_bytes=MIB)).step_model.close()
    assert mapped == {}


def test_one_step_is_in_flight_and_another_one_is_refused(runner):
    chunk = Chunk(1, array("I", [1, 2]), 0, (0,), None)
    step = runner.step_model.begin([chunk], [1], ())
    with pytest.raises(NativeStepError):
        runner.step_model.begin([chunk], [1], ())

    assert step.finish().finite == [True]
    with pytest.raises(NativeStepError):
        step.finish()
    assert runner.step_model.begin([chunk], [1], ()).finish().finite == [True]


def test_a_model_closed_during_a_step_ends_after_it(folder):
    model = load_runner(folder, RunnerSettings(kv_cache_bytes=MIB)).step_model
    step = model.begin([Chunk(1, [1] * 60, 0, range(4), None)], [59], ())

    model.close()
    model.close()

    assert step._job.seconds > 0  # its thread computed the step, and wrote what it took


def test_a_step_of_a_closed_model_cannot_be_finished(folder):
    model = load_runner(folder, RunnerSettings(kv_cache_bytes=MIB)).step_model
    step = model.begin([Chunk(1, [1] * 60, 0, range(4), None)], [59], ())
    model.close()

    with pytest.raises(NativeStepError, match="the model is closed"):
        step.finish()


def test_a_file_that_is_no_library_is_refused(tmp_path):
    damaged = tmp_path / "library.so"
    damaged.write_bytes(b"not a library")

    with pytest.raises(NativeStepUnavailable, match="cannot be loaded"):
        NativeLibrary(damaged)


def test_a_library_in_the_images_home_is_taken_from_any_owner_and_a_part_of_one_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("WARMFLEET_HOME", str(tmp_path / "own"))
    own = build.library_path()
    prebuilt = tmp_path / "image" / "native" / own.name
    prebuilt.parent.mkdir(parents=True)
    shutil.copy(own, prebuilt)
    prebuilt.chmod(0o666)
    os.chown(prebuilt, os.geteuid() or 65534, -1)
    monkeypatch.setenv("WARMFLEET_IMAGE_HOME", str(tmp_path / "image"))

    assert build.library_path() == prebuilt

    os.truncate(prebuilt, 1000)
    assert build.library_path() == own


def test_a_library_beside_the_module_is_taken_first(tmp_path, monkeypatch):
    whole = build.library_path()
    sources = tmp_path / "csrc"
    sources.mkdir()
    monkeypatch.setattr(build, "SOURCES", sources)
    prebuilt = build.library_beside()
    shutil.copy(whole, prebuilt)

    assert prebuilt.parent == tmp_path
    assert build.library_path() == prebuilt
