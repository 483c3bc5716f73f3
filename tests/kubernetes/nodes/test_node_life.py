"""A process node that is killed or stopped, and nodes that run no process at all."""

import subprocess
import sys
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from warmfleet_devcluster.control_plane.certificates import CertificateAuthority
from warmfleet_testing.cluster.cluster import DevCluster, eventually
from warmfleet_testing.cluster.pods import Pods, deployment, main, pod


@pytest.fixture
def extra_node(cluster: DevCluster, tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process node of the test's own, to be killed; only pods that ask for it by name run there."""
    serving = CertificateAuthority(tmp_path).server(
        "extra", names=["extra"], addresses=[IPv4Address("10.10.0.200")]
    )
    pki = cluster.folder.pki
    command = [
        *(sys.executable, "-m", "warmfleet_devcluster.node", "--name", "extra"),
        *("--kubeconfig", str(pki / "admin.kubeconfig"), "--address", "10.10.0.200"),
        *("--pod-cidr", "10.244.200.0/24", "--images", str(cluster.folder.images), "--state", str(tmp_path)),
        *("--client-ca", str(pki / "ca.crt")),
        *("--serving-certificate", str(serving.certificate), "--serving-key", str(serving.key)),
    ]
    process = subprocess.Popen(cluster.inside(*command))
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)
        cluster.kubectl("delete", "node", "extra", "--ignore-not-found", "--wait=false")


def test_a_node_killed_leaves_no_process_no_mount_and_no_interface(
    pods: Pods, extra_node: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    mark = "31415.92"
    asked = main(f"setsid sleep {mark} & exec sleep {mark}", volumeMounts=[{"name": "m", "mountPath": "/m"}])
    pods.apply(
        pod("doomed", asked, nodeName="extra", volumes=[{"name": "m", "emptyDir": {"medium": "Memory"}}])
    )
    pods.ready("doomed")
    eventually(lambda: len(processes_with(mark)) >= 2)
    links = ["ip", "-brief", "link", "show", "type", "veth"]
    before = subprocess.check_output(pods.cluster.inside(*links), text=True).splitlines()

    extra_node.kill()

    eventually(lambda: processes_with(mark), [])
    eventually(
        lambda: len(subprocess.check_output(pods.cluster.inside(*links), text=True).splitlines()),
        lambda count: count < len(before),
    )
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


def processes_with(mark: str) -> list[str]:
    """Processes that name `mark` on their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if mark.encode() in words:
            found.append(entry.parent.name)
    return found


def test_a_node_stopped_ends_its_pods_and_takes_them_up_again_when_it_comes_back(
    pods: Pods, extra_node: "subprocess.Popen[bytes]"
) -> None:
    mark = "27182.81"
    pods.apply(pod("stays", main(f"trap 'exit 0' TERM; sleep {mark} & wait"), nodeName="extra"))
    pods.ready("stays")
    extra_node.terminate()
    assert extra_node.wait(60) == 0
    assert processes_with(mark) == []
    again = subprocess.Popen(extra_node.args)
    try:
        status = eventually(
            lambda: pods.get("pod", "stays")["status"]["containerStatuses"][0],
            lambda status: status["restartCount"] == 1 and status["ready"],
        )
        assert "running" in status["state"]
        eventually(lambda: len(processes_with(mark)), 1)
    finally:
        again.kill()
        again.wait(10)


def test_hollow_nodes_make_pods_ready_without_running_them(pods: Pods) -> None:
    command = [
        *(sys.executable, "-m", "warmfleet_devcluster.hollow", "--count", "3", "--prefix", "empty"),
        *("--kubeconfig", str(pods.cluster.folder.pki / "admin.kubeconfig")),
    ]
    process = subprocess.Popen(pods.cluster.inside(*command))
    try:
        selector = {"devcluster.warmfleet.dev/hollow": "true"}
        pods.apply(deployment("many", 100, main("sleep 16180.33"), nodeSelector=selector))
        pods.kubectl("rollout", "status", "deployment/many", "--timeout=110s")
        assert processes_with("16180.33") == []
        pods.kubectl("delete", "deployment", "many", "--cascade=foreground", "--timeout=110s")
        assert pods.kubectl("get", "pods", "-o", "name") == ""
    finally:
        process.terminate()
        process.wait(10)
        pods.kubectl("delete", "node", "empty-0", "empty-1", "empty-2", "--wait=false")
