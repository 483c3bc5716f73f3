"""The state folder, and the decisions about volumes."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from warmfleet_devcluster.control_plane.provisioner import released_volumes, wanted_volumes
from warmfleet_devcluster.errors import AlreadyRunningError, DevclusterError, NotPermittedError
from warmfleet_devcluster.lifecycle.running import start_supervisor, stop_devcluster
from warmfleet_devcluster.settings import DevclusterSettings
from warmfleet_devcluster.state import ComponentState, DevclusterState, StateFolder
from warmfleet_runtime.process_identity import ProcessIdentity, identify

NO_PROCESS = ProcessIdentity(2**22 + 1, "gone")


def state(*components: ComponentState, supervisor: ProcessIdentity = NO_PROCESS) -> DevclusterState:
    return DevclusterState(phase="Ready", supervisor=supervisor, components=list(components))


def test_a_folder_has_one_owner_at_a_time(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "state")
    with folder.locked():
        with pytest.raises(AlreadyRunningError) as caught, StateFolder(tmp_path / "state").locked():
            pass
        assert "warmfleet devcluster down" in caught.value.advice
    with folder.locked():
        pass


def test_a_folder_that_cannot_be_made_names_itself(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(DevclusterError, match="file/state cannot be written"),
        StateFolder(tmp_path / "file" / "state").locked(),
    ):
        pass


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    assert folder.read() is None
    written = state(ComponentState("etcd", NO_PROCESS))
    folder.write(written)
    assert folder.read() == written


@pytest.mark.parametrize("content", [b"", b"{", b'{"v": 99}', b"[]"])
def test_a_damaged_state_is_no_state(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state.json").write_bytes(content)
    assert StateFolder(tmp_path).read() is None


def test_clearing_keeps_the_lock_and_follows_no_link(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "precious").write_text("")
    folder = StateFolder(tmp_path / "state")
    with folder.locked():
        folder.logs.mkdir()
        folder.pki.mkdir()
        (folder.path / "link").symlink_to(kept)
        folder.clear(keep_logs=True)
        assert {path.name for path in folder.path.iterdir()} == {"lock", "logs"}
        folder.clear(keep_logs=False)
        assert {path.name for path in folder.path.iterdir()} == {"lock"}
    assert (kept / "precious").exists()


def test_stop_returns_false_without_a_devcluster_and_kills_what_a_dead_supervisor_left(
    tmp_path: Path,
) -> None:
    folder = StateFolder(tmp_path)
    assert not stop_devcluster(folder)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        identity = identify(process.pid)
        assert identity is not None
        bystander = ProcessIdentity(os.getpid(), "another boot")  # our pid, but not us
        folder.write(state(ComponentState("etcd", identity), ComponentState("kcm", bystander)))
        assert stop_devcluster(folder)
        assert process.wait(10) == -signal.SIGKILL
    assert folder.read() is None


def test_a_user_without_root_gets_an_error_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    settings = DevclusterSettings(state=tmp_path / "state", home=tmp_path, binaries=tmp_path)
    with pytest.raises(NotPermittedError, match="needs root"):
        start_supervisor(settings, lambda _: None)
    assert not (tmp_path / "state").exists()


def claim(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "metadata": {
            "namespace": "ns",
            "name": "c",
            "uid": "u1",
            "annotations": {"volume.kubernetes.io/selected-node": "node-0"},
        },
        "spec": {
            "storageClassName": "standard",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    for path, value in changes.items():
        part, key = path.split("_", 1)
        found[part][key] = value
    return found


def test_a_claim_whose_pod_has_a_node_gets_a_volume_of_its_own(tmp_path: Path) -> None:
    (volume,) = wanted_volumes([claim()], [], tmp_path)
    assert volume["spec"]["hostPath"]["path"] == str(tmp_path / "pvc-u1")
    assert volume["spec"]["claimRef"]["uid"] == "u1"
    assert volume["spec"]["capacity"] == {"storage": "1Gi"}
    assert wanted_volumes([claim()], [volume], tmp_path) == []


@pytest.mark.parametrize(
    "other",
    [
        claim(metadata_annotations={}),
        claim(spec_storageClassName="other"),
        claim(spec_volumeName="v"),
        claim(metadata_deletionTimestamp="now"),
    ],
)
def test_other_claims_get_none(tmp_path: Path, other: dict[str, Any]) -> None:
    assert wanted_volumes([other], [], tmp_path) == []


def test_only_our_own_released_volumes_are_deleted(tmp_path: Path) -> None:
    (ours,) = wanted_volumes([claim()], [], tmp_path)
    bound = {**ours, "status": {"phase": "Bound"}}
    released = {**ours, "status": {"phase": "Released"}}
    foreign = {**released, "metadata": {"name": "foreign"}}
    assert released_volumes([bound, foreign]) == []
    assert released_volumes([released]) == ["pvc-u1"]
