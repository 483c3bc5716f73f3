"""What a real node's programs read, and what they leave outside of the node's folder: nothing."""

import io
import json
import tarfile
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from warmfleet_devcluster.real_node import __main__ as program
from warmfleet_devcluster.real_node.configuration import (
    PAUSE_IMAGE,
    cni_config,
    containerd_config,
    kubelet_command,
    kubelet_config,
)
from warmfleet_devcluster.real_node.pause_image import pause_archive
from warmfleet_devcluster.real_node.settings import RealNodeSettings

SETTINGS = RealNodeSettings(
    name="node-1",
    kubeconfig=Path("/pki/node-1.kubeconfig"),
    address="10.10.0.11",
    pod_cidr="10.244.1.0/24",
    kubelet=Path("/programs/kubelet"),
    pause=Path("/programs/pause"),
    state=Path("/state/node-1"),
    client_ca=Path("/pki/ca.crt"),
    serving_certificate=Path("/pki/serving.crt"),
    serving_key=Path("/pki/serving.key"),
    dns="10.96.0.10",
)


def test_kubelet_and_containerd_use_one_socket_and_write_below_the_state_only():
    kubelet, containerd = kubelet_config(SETTINGS), tomllib.loads(containerd_config(SETTINGS))
    socket = "/state/node-1/containerd.sock"
    assert kubelet["containerRuntimeEndpoint"] == f"unix://{socket}"
    assert containerd["grpc"]["address"] == socket
    written = [containerd["root"], containerd["state"], kubelet["podLogsDir"], kubelet["volumePluginDir"]]
    written += [cni_config(SETTINGS)["plugins"][0]["ipam"]["dataDir"]]
    written += [flag.partition("=")[2] for flag in kubelet_command(SETTINGS, Path("/c")) if "-dir=" in flag]
    assert len(written) == 7
    assert all(path.startswith("/state/node-1/") for path in written)


def test_the_kubelet_answers_only_who_the_clusters_authority_signed():
    config = kubelet_config(SETTINGS)
    assert config["authentication"]["anonymous"] == {"enabled": False}
    assert config["authentication"]["x509"] == {"clientCAFile": "/pki/ca.crt"}
    assert config["address"] == "10.10.0.11"


def test_pods_get_addresses_of_the_nodes_network_and_names_of_the_cluster():
    (plugin,) = cni_config(SETTINGS)["plugins"]
    assert plugin["ipam"]["ranges"] == [[{"subnet": "10.244.1.0/24"}]]
    assert kubelet_config(SETTINGS)["clusterDNS"] == ["10.96.0.10"]


def test_the_image_of_a_sandbox_holds_one_program_that_any_user_may_run():
    with tarfile.open(fileobj=io.BytesIO(pause_archive(PAUSE_IMAGE, b"program"))) as archive:
        (image,) = json.load(archive.extractfile("manifest.json"))
        config = json.load(archive.extractfile(image["Config"]))
        layer = archive.extractfile(image["Layers"][0]).read()
    assert image["RepoTags"] == [PAUSE_IMAGE]
    assert (
        tomllib.loads(containerd_config(SETTINGS))["plugins"]["io.containerd.grpc.v1.cri"]["sandbox_image"]
        == PAUSE_IMAGE
    )
    assert config["config"]["Entrypoint"] == ["/pause"]
    assert config["config"]["User"].split(":")[0] not in ("", "0")
    with tarfile.open(fileobj=io.BytesIO(layer)) as files:
        assert [(entry.name, entry.mode) for entry in files] == [("pause", 0o755)]


def test_the_plan_shows_the_node_its_own_kernel_settings(tmp_path):
    (tmp_path / "pause").write_bytes(b"program")
    settings = replace(SETTINGS, state=tmp_path / "node-1", pause=tmp_path / "pause")
    plan = json.loads(program.write_files(settings).read_bytes())
    shown = {name: Path(file).read_text() for name, file in plan["kernel_settings"].items()}
    assert shown["vm/overcommit_memory"] == "1\n"
    assert shown["kernel/panic"] == "10\n"
    assert all(Path(file).is_relative_to(tmp_path) for file in plan["kernel_settings"].values())
    assert Path(plan["pause_archive"]).is_file()
    assert "/run/netns" in plan["folders"]


FLAGS = {
    "name": "node-0",
    "kubeconfig": "/k",
    "address": "10.10.0.10",
    "pod-cidr": "10.244.0.0/24",
    "kubelet": "/kubelet",
    "pause": "/pause",
    "client-ca": "/ca",
    "serving-certificate": "/crt",
    "serving-key": "/key",
    "dns": "10.96.0.10",
}


@pytest.fixture
def arguments(tmp_path):
    pairs = {**FLAGS, "state": str(tmp_path / "state")}
    return [part for name, value in pairs.items() for part in (f"--{name}", value)]


def test_a_second_real_node_on_a_machine_is_refused(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(program, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(program, "check_programs", lambda: None)
    with program.alone():
        assert program.main(arguments) == 1
    assert "another real node runs on this machine" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()


def test_missing_programs_are_named_with_their_packages(arguments, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program.main(arguments) == 1
    error = capsys.readouterr().err
    assert "containerd, containerd-shim-runc-v2, ctr, runc" in error
    assert "apt-get install --no-install-recommends containerd " in error
    assert not (tmp_path / "state").exists()
