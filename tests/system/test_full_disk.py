"""A full disk: requests go on, what cannot be written is reported, no partial file is read.

No file of the processes here can grow (RLIMIT_FSIZE), which fails their writes where a full disk does.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from warmfleet_cli.errors import CliError
from warmfleet_cli.key_file import edited_keys, load_keys
from warmfleet_cli.local.log_file import LogFile
from warmfleet_cli.local.state import RunFolder
from warmfleet_contracts.keys import encode_key_file
from warmfleet_router.workers.encoders import _store
from warmfleet_testing.engine.worker_process import running_worker, tiny_served_model
from warmfleet_testing.processes.plain_http import NO_TLS
from warmfleet_testing.processes.ports import free_port_range
from warmfleet_testing.processes.process_limits import (
    full_disk,
    full_disk_here,
    limit_process,
    roomy_disk,
    under,
)
from warmfleet_testing.router.planted_keys import PlantedKeys
from warmfleet_testing.router.router_process import router_process
from warmfleet_testing.router.whole_fleet import START_SECONDS, WholeFleet, kill, wait_for, whole_fleet


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_served_model(tmp_path_factory.mktemp("model"))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_log_without_space_reports_afterwards_what_it_lost(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "worker.log")
    log.write(b"before\n")
    with full_disk_here():
        for _ in range(3):
            log.write(b"lost\n")

    log.write(b"after\n")
    log.close()

    assert log.tail(9) == ["before", "-- 15 bytes of the log are lost: file too large --", "after"]


def test_a_log_that_cannot_rotate_loses_no_file(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "worker.log", max_bytes=20)
    log.write(b"a" * 15)
    with full_disk_here():
        log.write(b"b" * 15)
    log.write(b"c\n")
    log.close()

    assert log.tail(9)[-1] == "c"


def test_the_state_of_a_fleet_is_the_old_one_until_the_new_one_is_whole(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "fleet")
    folder.create()
    folder.write_endpoints([{"uid": "w0"}])
    before = folder.endpoints_path.read_bytes()

    with (
        full_disk_here(),
        pytest.raises(CliError, match=r"endpoints\.json cannot be written: file too large"),
    ):
        folder.write_endpoints([{"uid": "w1"}])

    assert folder.endpoints_path.read_bytes() == before
    assert names(folder.path) == {"endpoints.json"}


def test_a_key_file_is_the_old_one_until_the_new_one_is_whole(tmp_path: Path) -> None:
    keys = PlantedKeys()
    keys.add("one")
    path = tmp_path / "keys.json"
    path.write_bytes(encode_key_file(keys.file))
    before = keys.file
    keys.add("two")

    with (
        full_disk_here(),
        pytest.raises(CliError, match=r"keys\.json cannot be written: file too large"),
        edited_keys(path) as edit,
    ):
        edit.keys = keys.file

    assert load_keys(path) == before
    assert names(tmp_path) == {"keys.json"}


def test_a_tokenizer_that_cannot_be_kept_leaves_nothing_behind(tmp_path: Path) -> None:
    with full_disk_here():
        _store(tmp_path / "digest.msgpack", b"x" * 100)

    assert names(tmp_path) == set()


def test_a_router_without_room_for_logs_and_tokenizers_routes_by_prefix(model: Path, tmp_path: Path) -> None:
    with (
        running_worker(model, "--uid", "w0") as worker,
        router_process({"w0": worker}, tmp_path, limits=full_disk()) as router,
        router.client() as client,
    ):
        body = {"model": "tiny", "prompt": "hello " * 20, "max_tokens": 3, "ignore_eos": True}

        def precise() -> bool:
            response = client.post("/v1/completions", json=body)
            assert response.status_code == 200
            decision = client.get(f"/debug/decisions/{response.headers['x-warmfleet-decision']}").json()
            return bool(decision["prompt_tokens"])

        wait_for(precise, "the router knows the tokenizer")
        assert router.log_text() == ""
        assert not list(tmp_path.rglob("*.msgpack"))
        assert not list(tmp_path.rglob(".fetch-*"))


def test_a_fleet_whose_disk_fills_goes_on_and_writes_its_state_when_there_is_space(
    model: Path, tmp_path: Path
) -> None:
    with whole_fleet(tmp_path, model, replicas=1) as fleet:
        folder = RunFolder(tmp_path, fleet.name)
        before = folder.read()
        assert before is not None
        pids = [before.supervisor.pid, *(one.identity.pid for one in before.processes if one.identity)]
        assert len(pids) == 3

        for pid in pids:
            limit_process(pid, full_disk())
        assert ask(fleet).status_code == 200
        (worker,) = (one for one in before.processes if one.role == "worker")
        assert worker.identity is not None
        kill(worker.identity.pid)
        wait_for(lambda: answers(fleet), "the worker is back", seconds=START_SECONDS)

        assert folder.read() == before, "nothing partial"
        assert [one["restarts"] for one in fleet.processes("worker")] == [0], "and nothing made up"
        for pid in set(pids) - {worker.identity.pid}:
            limit_process(pid, roomy_disk())
        wait_for(lambda: restarts(folder) == 1, "the state is written after all", seconds=20)
        assert ask(fleet).status_code == 200
        assert [one["restarts"] for one in fleet.processes("worker")] == [1]


def test_a_fleet_is_not_started_where_its_state_cannot_be_written(model: Path, tmp_path: Path) -> None:
    manifest = {
        "apiVersion": "warmfleet.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": "none"},
        "spec": {
            "model": {"servedNames": ["tiny"], "source": {"localPath": {"path": str(model)}}},
            "kvCache": {"size": "4Mi"},
        },
    }
    (tmp_path / "none.yaml").write_text(json.dumps(manifest))
    command = [sys.executable, "-m", "warmfleet_cli", "up", "-f", str(tmp_path / "none.yaml"), "--detach"]

    ports = free_port_range(3)
    finished = subprocess.run(
        under(full_disk(), [*command, "--port", str(ports), "--worker-port", str(ports + 1)]),
        env={**os.environ, "WARMFLEET_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert finished.returncode == 1
    assert f"{tmp_path}/run/none/endpoints.json cannot be written: file too large" in finished.stderr
    assert "Traceback" not in finished.stderr
    assert RunFolder(tmp_path, "none").read() is None


def ask(fleet: WholeFleet) -> httpx.Response:
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 3, "ignore_eos": True}
    return httpx.post(f"{fleet.url}/v1/completions", json=body, timeout=30, verify=NO_TLS)


def answers(fleet: WholeFleet) -> bool:
    return ask(fleet).status_code == 200


def restarts(folder: RunFolder) -> int:
    state = folder.read()
    assert state is not None
    return sum(one.restarts for one in state.processes)
