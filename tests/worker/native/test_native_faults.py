"""What a machine takes away or lacks changes neither a bit nor whether a step ends.

The oracle is the same step computed where nothing is missing.
"""

import hashlib
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from warmfleet_testing.engine.tiny_models import tiny_model_folder
from warmfleet_testing.exact.model_steps import hidden_rows
from warmfleet_worker.engine.batch import Chunk
from warmfleet_worker.native.library import NativeLibrary
from warmfleet_worker.runner.runner import load_runner
from warmfleet_worker.runner.runner_settings import RunnerSettings

TOKENS = 300
CHUNK = Chunk(1, [1 + index % 500 for index in range(TOKENS)], 0, range(20), None)
_ENDS_WITHIN_SECONDS = 300
"""A step that has not ended then hangs: it takes milliseconds, on a busy machine seconds."""
_WITHOUT_HUGE_PAGES = """
import ctypes, sys
PR_SET_THP_DISABLE = 41
if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0):
    sys.exit("the kernel refuses PR_SET_THP_DISABLE")
from pathlib import Path
from test_native_faults import digest_of
found = digest_of(Path(sys.argv[1]))
rollup = Path("/proc/self/smaps_rollup").read_text().splitlines()
print(found, next(line for line in rollup if line.startswith("AnonHugePages")).split()[1])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_model_folder("qwen3", tmp_path_factory.mktemp("tiny"))


def digest_of(folder: Path) -> str:
    """Of the final hidden states of `CHUNK`, by two threads."""
    hidden, finite = hidden_rows(_model(folder), [CHUNK], range(TOKENS))
    assert finite == [True]
    return hashlib.sha256(hidden.numpy().tobytes()).hexdigest()


def test_a_step_ends_with_equal_bits_when_its_threads_lose_all_cores_but_one(folder):
    expected, _ = hidden_rows(_model(folder), [CHUNK], range(TOKENS))
    model = _model(folder)
    cores = os.sched_getaffinity(0)
    ended = []

    def compute() -> None:
        # So many steps that most of them run while cores come and go.
        ended.extend(hidden_rows(model, [CHUNK], range(TOKENS))[0] for _ in range(40))

    computing = threading.Thread(target=compute, daemon=True)
    computing.start()
    try:
        while computing.is_alive() and len(ended) < 40:
            for some in ({min(cores)}, cores):
                _move_threads(some)
                computing.join(0.002)
    finally:
        _move_threads({min(cores)})
        computing.join(_ENDS_WITHIN_SECONDS)
        _move_threads(cores)

    assert not computing.is_alive()
    assert len(ended) == 40
    assert all(torch.equal(hidden, expected) for hidden in ended)


def test_without_huge_pages_a_step_has_equal_bits(folder):
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_HUGE_PAGES, str(folder)],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    digest, huge_kilobytes = done.stdout.split()
    assert huge_kilobytes == "0"
    assert digest == digest_of(folder)


@pytest.mark.parametrize("quantization", ["None", "Int8"])
def test_weights_in_float16_are_computed_as_the_numbers_they_are(tmp_path, quantization):
    # given the same numbers in files of two dtypes
    rows = []
    for dtype in (torch.float16, torch.float32):
        folder = tiny_model_folder("llama", tmp_path / str(dtype))
        weights = load_file(folder / "model.safetensors")
        halves = {name: tensor.to(torch.float16).to(dtype) for name, tensor in weights.items()}
        save_file(halves, folder / "model.safetensors", metadata={"format": "pt"})

        # when
        model = _model(folder, quantization)
        rows.append(hidden_rows(model, [CHUNK], range(TOKENS))[0])

    # then
    assert torch.equal(*rows)


def test_two_processes_that_start_at_once_compile_one_whole_library(tmp_path):
    program = "from warmfleet_worker.native.build import library_path; print(library_path())"
    environment = {**os.environ, "WARMFLEET_HOME": str(tmp_path)}
    started = [
        subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]

    found = [process.communicate()[0].strip() for process in started]

    assert [process.returncode for process in started] == [0, 0]
    assert found[0] == found[1]
    assert [str(path) for path in (tmp_path / "native").iterdir()] == found[:1]
    assert NativeLibrary(Path(found[0])).levels()


def _move_threads(cores: set[int]) -> None:
    """Let every thread of this process run on these cores alone, those of the library included."""
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread.name), cores)


def _model(folder: Path, quantization="None"):
    settings = RunnerSettings(kv_cache_bytes=2**21, threads=2, weight_quantization=quantization)
    return load_runner(folder, settings).step_model
