"""A real node whose supervisor is killed."""

import os
import signal
from pathlib import Path

import pytest

from warmfleet_devcluster.control_plane.binaries import KUBELET, find_binaries
from warmfleet_runtime.home import warmfleet_home
from warmfleet_testing.cluster.cluster import eventually, running_cluster
from warmfleet_testing.containers.machine import nothing_left, processes_of, traces

pytestmark = [pytest.mark.containers, pytest.mark.timeout(600)]


def test_a_killed_supervisor_takes_its_node_along_and_the_next_start_removes_control_groups(tmp_path):
    settings = {"nodes": 0, "pretend": {}, "real_node": find_binaries(warmfleet_home(), KUBELET).folder}
    with nothing_left(tmp_path):
        before = traces(tmp_path)
        with running_cluster(**settings) as cluster:
            node = cluster.folder.part("node-0")
            assert processes_of("kubelet", node / "kubelet.json")
            os.kill(cluster.supervisor.pid, signal.SIGKILL)
            for program, file in (("kubelet", "kubelet.json"), ("containerd", "containerd.toml")):
                eventually(lambda program=program, file=file: not processes_of(program, node / file))
            left = traces(node)
            assert left.mounts == traces(tmp_path).mounts == before.mounts
            assert left.kernel_settings == before.kernel_settings
            assert left.kubelet_socket_at_ns == before.kubelet_socket_at_ns
        of_killed = [Path(group) / "of-the-killed-node" for group in left.control_groups]
        assert of_killed
        for group in of_killed:
            group.mkdir()
        with running_cluster(**settings) as cluster:
            assert [item["metadata"]["name"] for item in cluster.get("nodes")["items"]] == ["node-0"]
            assert not [group for group in of_killed if group.exists()]
