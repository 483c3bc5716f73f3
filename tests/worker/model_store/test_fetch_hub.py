"""Models from the hub: against a hub on a local port, through the command that pods run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from warmfleet_contracts.resources.fetch_outcome import FetchExitCode
from warmfleet_testing.engine.fake_hub import REPOSITORY, REVISION, running_hub
from warmfleet_testing.engine.tiny_models import tiny_model_folder
from warmfleet_testing.engine.tiny_tokenizer import tiny_tokenizer
from warmfleet_worker.model_store.fetch.command import attempt
from warmfleet_worker.model_store.fetch.settings import parse_settings
from warmfleet_worker.model_store.manifest import MANIFEST_NAME, verify_model_folder

TOKEN = "hf_" + "planted" * 4
MODEL_FILES = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
OTHERS = {
    "README.md": b"# tiny",
    "pytorch_model.bin": b"\x80\x04pickle",
    "modeling_tiny.py": b"raise SystemExit('code of a repository ran')",
    "consolidated.safetensors": b"not asked for",
    "training_args.json": b"{}",
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    folder = tiny_model_folder("llama", tmp_path_factory.mktemp("repository"))
    (folder / "tokenizer.json").write_text(json.dumps(tiny_tokenizer()))
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages[0].content }}"}')
    for name, content in OTHERS.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def hub(repository):
    with running_hub(repository) as running:
        yield running


@pytest.fixture
def store(tmp_path):
    """The volume that models lie on."""
    return tmp_path / "models"


class Fetch:
    """A finished fetch."""

    def __init__(self, code, message, store, output=""):
        self.code, self.message, self.folder = code, message, store / "key"
        self.output = output


def command(store, *flags, repository=REPOSITORY, revision=REVISION):
    return [
        *(sys.executable, "-m", "warmfleet_worker.fetch", "--hugging-face", repository),
        *("--revision", revision, "--into", str(store / "key"), "--timeout-seconds", "30"),
        *("--termination-message", str(store.parent / "termination-log"), *flags),
    ]


def environment(hub, token=""):
    return {**os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": token, "NO_PROXY": "127.0.0.1,localhost"}


def fetch(hub, store, *flags, token="", **source):
    """In this process."""
    settings = parse_settings(command(store, *flags, **source)[3:], environment(hub, token))
    code, message = attempt(settings)
    return Fetch(code, message, store)


def run(hub, store, *flags, token="", **source):
    """As a pod does."""
    store.mkdir(exist_ok=True)
    message_path = store.parent / "termination-log"
    message_path.write_text("")
    done = subprocess.run(
        command(store, *flags, **source),
        capture_output=True,
        text=True,
        env=environment(hub, token),
        timeout=60,
        check=False,
    )
    return Fetch(done.returncode, message_path.read_text(), store, done.stdout + done.stderr)


def test_a_commit_becomes_a_verified_folder_of_the_files_a_model_needs(hub, store, repository):
    fetched = run(hub, store)
    assert fetched.code == FetchExitCode.DONE, fetched.message
    assert {path.name for path in fetched.folder.iterdir()} == MODEL_FILES | {MANIFEST_NAME}
    for name in MODEL_FILES:
        assert (fetched.folder / name).read_bytes() == (repository / name).read_bytes()
    manifest = verify_model_folder(fetched.folder)
    assert manifest.source == f"huggingface:{REPOSITORY}@{REVISION}"
    assert str(manifest.total_bytes) in fetched.message
    assert {seen.path.rpartition("/")[2] for seen in hub.seen if "/resolve/" in seen.path} == MODEL_FILES


def test_a_second_fetch_sends_no_request(hub, store):
    fetch(hub, store)
    asked = len(hub.seen)
    assert fetch(hub, store, "--offline").code == FetchExitCode.DONE
    assert len(hub.seen) == asked


def test_a_damaged_folder_is_replaced(hub, store):
    folder = fetch(hub, store).folder
    (folder / "model.safetensors").write_bytes(b"short")
    assert fetch(hub, store).code == FetchExitCode.DONE
    verify_model_folder(folder)


def test_a_broken_connection_goes_on_by_range_and_no_byte_comes_twice(hub, store):
    size_bytes = len(hub.files["model.safetensors"])
    hub.cut_after_bytes, hub.cuts = size_bytes // 3, 2
    fetched = fetch(hub, store)
    assert fetched.code == FetchExitCode.DONE, fetched.message
    downloads = hub.downloads("model.safetensors")
    assert [seen.status for seen in downloads] == [200, 206, 206]
    assert sum(seen.sent_bytes for seen in downloads) == size_bytes
    verify_model_folder(fetched.folder)


def test_a_server_without_ranges_is_read_from_the_start(hub, store):
    hub.cut_after_bytes, hub.cuts, hub.ignore_ranges = 5000, 1, True
    fetched = fetch(hub, store)
    assert fetched.code == FetchExitCode.DONE, fetched.message
    assert [seen.status for seen in hub.downloads("model.safetensors")] == [200, 200]
    verify_model_folder(fetched.folder)


def test_a_fetch_that_was_killed_goes_on_where_it_was(hub, store):
    size_bytes = len(hub.files["model.safetensors"])
    hub.cut_after_bytes, hub.cuts = size_bytes // 2, 1
    hub.failures_after_cut = [503] * 100  # it does not get any further before it is killed
    partial = store / ".fetching-key" / "model.safetensors.partial"
    process = subprocess.Popen(
        command(store), env=environment(hub), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while not (partial.exists() and partial.stat().st_size == size_bytes // 2):
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (store / "key").exists()
    hub.failures.clear()
    hub.seen.clear()
    fetched = fetch(hub, store)
    assert fetched.code == FetchExitCode.DONE
    assert [seen.range for seen in hub.downloads("model.safetensors")] == [f"bytes={size_bytes // 2}-"]
    verify_model_folder(fetched.folder)


def test_what_an_earlier_fetch_left_damaged_is_fetched_anew_once(hub, store):
    work = store / ".fetching-key"
    work.mkdir(parents=True)
    (work / "model.safetensors.partial").write_bytes(b"x" * 1000)
    (work / "foreign.py").write_text("left by another process")
    fetched = fetch(hub, store)
    assert fetched.code == FetchExitCode.DONE, fetched.message
    assert [seen.range for seen in hub.downloads("model.safetensors")] == ["bytes=1000-", ""]
    assert {path.name for path in fetched.folder.iterdir()} == MODEL_FILES | {MANIFEST_NAME}


def test_content_other_than_listed_is_never_published(hub, store):
    content = bytearray(hub.files["model.safetensors"])
    content[-1] ^= 1
    hub.falsified["model.safetensors"] = bytes(content)
    fetched = fetch(hub, store)
    assert fetched.code == FetchExitCode.FAILED
    assert "model.safetensors does not have the digest" in fetched.message
    assert not fetched.folder.exists()


def test_a_small_file_is_held_to_the_blob_that_git_names(hub, store):
    hub.falsified["tokenizer.json"] = hub.files["tokenizer.json"].replace(b"1", b"2")
    fetched = fetch(hub, store)
    assert fetched.code == FetchExitCode.FAILED
    assert "tokenizer.json does not have the digest" in fetched.message


def test_an_answer_longer_than_listed_is_cut_off(hub, store):
    hub.falsified["model.safetensors"] = hub.files["model.safetensors"] + b"x" * 10_000_000
    fetched = fetch(hub, store)
    assert fetched.code == FetchExitCode.FAILED
    assert "longer than" in fetched.message
    partial = store / ".fetching-key" / "model.safetensors.partial"
    assert partial.stat().st_size <= len(hub.files["model.safetensors"])


@pytest.mark.parametrize(
    ("behaviour", "token", "message"),
    [
        ({"token": TOKEN}, "", "tokenSecretRef"),
        ({"token": TOKEN}, "hf_wrong", "refused the token"),
        ({"token": TOKEN, "gated": True}, TOKEN, "accept its terms"),
    ],
    ids=["private without a token", "wrong token", "gated"],
)
def test_no_access_names_what_to_do_and_is_not_retried(hub, store, behaviour, token, message):
    for name, value in behaviour.items():
        setattr(hub, name, value)
    fetched = fetch(hub, store, token=token)
    assert fetched.code == FetchExitCode.REFUSED
    assert message in fetched.message
    assert REPOSITORY in fetched.message
    assert len(hub.seen) == 1


def test_a_repository_that_is_not_there_is_named_with_the_hub(hub, store):
    fetched = fetch(hub, store, repository="acme/unknown")
    assert fetched.code == FetchExitCode.REFUSED
    assert f"no repository acme/unknown at {hub.url}" in fetched.message


def test_a_commit_that_is_not_there_is_named(hub, store):
    fetched = fetch(hub, store, revision="f" * 40)
    assert fetched.code == FetchExitCode.REFUSED
    assert f"{REPOSITORY} has no commit {'f' * 40}" in fetched.message


def test_a_hub_that_is_busy_is_asked_again(hub, store):
    hub.failures = [503, 429, 500]
    assert fetch(hub, store).code == FetchExitCode.DONE


def test_a_hub_that_stays_away_is_given_up_and_may_be_tried_again(hub, store):
    hub.failures = [503] * 100
    fetched = fetch(hub, store, "--timeout-seconds", "2")
    assert fetched.code == FetchExitCode.FAILED
    assert "503" in fetched.message


def test_the_token_goes_to_the_hub_and_not_where_it_redirects_to(hub, store):
    hub.token = TOKEN
    with running_hub() as network:
        network.files = hub.files
        # Another host for the same machine: an origin of its own.
        hub.content_network = network.url.replace("127.0.0.1", "localhost")
        fetched = run(hub, store, token=TOKEN)
    assert fetched.code == FetchExitCode.DONE, fetched.message
    assert {seen.token for seen in hub.seen} == {f"Bearer {TOKEN}"}
    assert [seen.path for seen in network.seen] == ["/blob/model.safetensors"]
    assert {seen.token for seen in network.seen} == {""}
    assert TOKEN not in fetched.output + fetched.message


def test_offline_is_the_reason_of_the_refusal(hub, store):
    fetched = fetch(hub, store, "--offline")
    assert fetched.code == FetchExitCode.REFUSED
    assert "offline" in fetched.message
    assert hub.seen == []


def test_too_little_space_is_reported_in_figures_before_anything_large_is_fetched(hub, store):
    listed = {"rfilename": "model.safetensors", "size": 2**42, "lfs": {"sha256": "0" * 64, "size": 2**42}}
    del hub.files["model.safetensors"]
    hub.extra_siblings = [listed]
    fetched = fetch(hub, store)
    assert fetched.code == FetchExitCode.NO_SPACE
    assert "4,194,320 MiB are needed" in fetched.message
    assert "MiB" in fetched.message.partition("needed")[2]
    assert hub.downloads("model.safetensors") == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda files: files.pop("config.json"), "holds no config.json"),
        (lambda files: files.pop("model.safetensors"), "holds no model.safetensors"),
        (
            lambda files: files.update(
                {"config.json": files["config.json"].replace(b"LlamaFor", b"RemoteFor")}
            ),
            "RemoteForCausalLM",
        ),
        (
            lambda files: files.update(
                {"model.safetensors.index.json": b'{"weight_map": {"a": "../../etc/x.safetensors"}}'}
            ),
            "which is no file of weights",
        ),
        (
            lambda files: files.update({"model.safetensors.index.json": b'{"weight_map": {"a": "x.bin"}}'}),
            "which is no file of weights",
        ),
        (
            lambda files: files.update({"model.safetensors.index.json": b"[]"}),
            "index.json is damaged",
        ),
    ],
    ids=["no config", "no weights", "unknown architecture", "path", "pickle", "damaged index"],
)
def test_a_repository_that_is_no_model_is_refused_before_its_weights(hub, store, change, message):
    change(hub.files)
    fetched = fetch(hub, store)
    assert fetched.code == FetchExitCode.REFUSED, fetched.message
    assert message in fetched.message
    assert hub.downloads("model.safetensors") == []
    assert not fetched.folder.exists()


@pytest.mark.parametrize(
    "sibling",
    [
        {"rfilename": "x" * 2000, "size": 1},
        {"rfilename": "model.safetensors", "size": -1},
        {"rfilename": "model.safetensors", "size": 1, "lfs": {"sha256": "short", "size": 1}},
    ],
)
def test_a_listing_that_is_none_is_refused(hub, store, sibling):
    hub.extra_siblings = [sibling]
    fetched = fetch(hub, store)
    assert fetched.code == FetchExitCode.FAILED
    assert "does not answer like a Hugging Face hub" in fetched.message


def test_one_of_two_fetches_does_the_work_and_the_other_waits_for_it(hub, store):
    size_bytes = len(hub.files["model.safetensors"])
    hub.cut_after_bytes = size_bytes // 2
    hub.cuts = 1
    both = [
        subprocess.Popen(
            command(store), env=environment(hub), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        for _ in range(2)
    ]
    assert [process.wait(40) for process in both] == [0, 0]
    assert sum(seen.sent_bytes for seen in hub.downloads("model.safetensors")) == size_bytes


def test_a_pod_waits_for_what_the_job_fetches(hub, store):
    store.mkdir()
    waiting = subprocess.Popen(
        command(store, "--wait"), env=environment(hub), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        assert waiting.stderr.readline()
        assert fetch(hub, store).code == FetchExitCode.DONE
        assert waiting.wait(20) == FetchExitCode.DONE
    finally:
        waiting.kill()
        waiting.communicate()


def test_a_failed_fetch_ends_with_the_code_and_the_reason_that_a_pod_shows(hub, store):
    hub.token = TOKEN
    fetched = run(hub, store, token="hf_wrong")
    assert fetched.code == FetchExitCode.REFUSED
    assert "refused the token" in fetched.message
    last = json.loads(fetched.output.splitlines()[-1])
    assert last["reason"] in fetched.message
    assert last["exit_code"] == FetchExitCode.REFUSED
    assert "hf_wrong" not in fetched.output


@pytest.mark.parametrize(
    "flags",
    [
        ("--hugging-face", "../../etc", "--revision", REVISION),
        ("--hugging-face", "acme/tiny", "--revision", "main"),
        ("--hugging-face", "acme/tiny", "--catalog", "x"),
        (),
    ],
)
def test_a_source_that_is_none_is_a_usage_error(flags, capsys):
    with pytest.raises(SystemExit) as end:
        parse_settings([*flags, "--into", "/models/key"], {})
    assert end.value.code == FetchExitCode.USAGE


def test_waiting_ends_with_the_time(hub, store):
    fetched = fetch(hub, store, "--wait", "--timeout-seconds", "0.3")
    assert fetched.code == FetchExitCode.FAILED
    assert "not fetched within 0.3 s" in fetched.message


def test_a_stop_ends_a_fetch_at_once(hub, store):
    store.mkdir()
    waiting = subprocess.Popen(
        command(store, "--wait"), env=environment(hub), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert waiting.stderr.readline()
    waiting.terminate()
    assert waiting.wait(10) == 128 + signal.SIGTERM
    waiting.communicate()
