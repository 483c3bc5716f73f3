"""Logs, exec, port-forward and the end of a pod: the second part of the list that `pods` begins."""

import subprocess
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from warmfleet_testing.cluster.cluster import eventually
from warmfleet_testing.cluster.control_plane import KubectlError
from warmfleet_testing.cluster.pods import Pods, main, pod


def get(url: str) -> int:
    with urllib.request.urlopen(url, timeout=60) as response:
        return len(response.read())


def test_logs_can_be_followed_cut_and_dated(pods: Pods) -> None:
    first_lines = "for i in 1 2 3; do echo out $i; echo err $i >&2; done"
    last_line = "until test -e /tmp/go_on; do sleep 0.1; done; echo end"
    pods.apply(pod("talks", main(f"{first_lines}; {last_line}"), restartPolicy="Never"))
    eventually(lambda: "running" in pods.state("talks"))
    with subprocess.Popen(
        [pods.cluster.binaries["kubectl"], "-n", pods.namespace, "logs", "talks", "--follow"],
        stdout=subprocess.PIPE,
        text=True,
        env=pods.cluster.environment,
    ) as following:
        assert following.stdout is not None
        followed = [following.stdout.readline() for _ in range(6)]
        pods.sh("talks", "touch /tmp/go_on")
        followed += following.stdout.readlines()
    lines = [line.rstrip("\n") for line in followed]
    assert sorted(lines) == ["end", "err 1", "err 2", "err 3", "out 1", "out 2", "out 3"]
    assert pods.kubectl("logs", "talks", "--tail=1") == "end\n"
    assert pods.kubectl("logs", "talks", "--limit-bytes=3", "--tail=1") == "end"
    dated = pods.kubectl("logs", "talks", "--timestamps", "--tail=1").split()
    assert dated[1] == "end"
    assert dated[0].endswith("Z")
    assert pods.kubectl("logs", "talks", "--since-time=2100-01-01T00:00:00Z") == ""


def test_a_command_inside_a_container_has_its_streams_and_its_exit_code(pods: Pods) -> None:
    pods.apply(pod("host", main("exec sleep 60")))
    pods.ready("host")
    assert pods.kubectl("exec", "-i", "host", "--", "cat", input="hello") == "hello"
    assert len(pods.sh("host", "head -c 1000000 /dev/zero | tr '\\0' x")) == 1_000_000
    with pytest.raises(KubectlError, match="exit code 7"):
        pods.sh("host", "exit 7")
    with pytest.raises(KubectlError, match="/none"):
        pods.kubectl("exec", "host", "--", "/none")


def test_ports_are_forwarded_for_many_connections_at_a_time(pods: Pods) -> None:
    serve = "head -c 3000000 /dev/zero > /tmp/zeros; exec python -m http.server 8000 -d /tmp"
    probe = {"tcpSocket": {"port": 8000}, "periodSeconds": 1}
    pods.apply(pod("web", main(serve, readinessProbe=probe)))
    pods.ready("web")
    with (
        pods.cluster.port_forward("pod/web", 8000, namespace=pods.namespace) as url,
        ThreadPoolExecutor(8) as several,
    ):
        assert list(several.map(get, [f"{url}/zeros"] * 16)) == [3_000_000] * 16
        # What the pod refuses ends that connection, not the others.
        with pytest.raises(urllib.error.HTTPError):
            get(f"{url}/none")
        assert get(f"{url}/zeros") == 3_000_000


def test_a_deleted_pod_goes_on_serving_until_it_has_ended_within_its_grace_period(pods: Pods) -> None:
    drains = main(
        "trap 'until test -e /tmp/seen; do sleep 0.1; done; exit 0' TERM; "
        "python -m http.server 8000 --directory /etc & wait",
        readinessProbe={"httpGet": {"path": "/", "port": 8000}, "periodSeconds": 1},
        ports=[{"containerPort": 8000}],
    )
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "drains"},
        "spec": {"selector": {"app": "drains"}, "ports": [{"port": 8000}]}}  # fmt: skip
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "echo hook > /disk/hook"]}}}
    disk = {"volumes": [{"name": "disk", "hostPath": {"path": str(pods.cluster.settings.state)}}]}
    mount = [{"name": "disk", "mountPath": "/disk"}]
    root = {"runAsUser": 0}
    pods.apply(
        service,
        pod("drains", drains, terminationGracePeriodSeconds=200),
        pod("stubborn", main("trap '' TERM; while true; do sleep 1; done")),
        pod(
            "hooked",
            main("exec sleep 60", lifecycle=hook, volumeMounts=mount, securityContext=root),
            terminationGracePeriodSeconds=5,  # the hook's, too
            **disk,
        ),
    )
    for name in ("drains", "stubborn", "hooked"):
        pods.ready(name)
    pods.kubectl("delete", "pod", "drains", "stubborn", "hooked", "--wait=false")

    def endpoint() -> dict[str, bool]:
        slices = pods.get("endpointslices")["items"]
        found = [e["conditions"] for item in slices for e in item.get("endpoints") or []]
        return found[0] if found else {}

    eventually(endpoint, {"ready": False, "serving": True, "terminating": True})
    pods.sh("drains", "touch /tmp/seen")
    # SIGKILL when the grace period is over; a PID 1 without a handler never sees the SIGTERM.
    eventually(lambda: pods.gone("stubborn"))
    eventually(lambda: pods.gone("hooked"))
    eventually(lambda: pods.gone("drains"))
    hook_file = pods.cluster.settings.state / "hook"
    assert hook_file.read_text() == "hook\n"
