"""The devcluster as a user meets it: up, down, what is left when a part dies, and nothing left after down."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from warmfleet_devcluster.state import DevclusterState, StateFolder
from warmfleet_runtime.process_identity import ProcessIdentity, is_alive
from warmfleet_testing.cluster.cluster import eventually
from warmfleet_testing.cluster.control_plane import running_control_plane
from warmfleet_testing.cluster.leftovers import machine, processes_that_name

IMAGE = "registry.devcluster.local/warmfleet/warmfleet-router:0.1.0"


def command(*args: str, state: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "warmfleet_cli", "devcluster", *args, "--state", str(state)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_up_prints_the_next_steps_and_down_leaves_nothing(tmp_path: Path) -> None:
    before = machine()
    state = tmp_path / "state"
    up = command("up", "--nodes", "1", state=state)
    assert up.returncode == 0, up.stderr
    folder = StateFolder(state)
    first, second, third, fourth = up.stdout.splitlines()
    assert first == f"export KUBECONFIG={folder.kubeconfig}"
    assert second.startswith("export PATH=")
    assert third == f"helm install warmfleet charts/warmfleet -f {folder.images_values}"
    assert fourth == "kubectl apply -f examples/smollm2.yaml"
    running = folder.read()
    assert running is not None
    binaries = second.removeprefix('export PATH="').partition(":")[0]
    kubectl = [f"{binaries}/kubectl", f"--kubeconfig={folder.kubeconfig}"]
    sleeps = f"import time; time.sleep(3000) # {state}"
    sleeper = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "sleeper"},
        "spec": {
            "containers": [{"name": "main", "image": IMAGE, "command": ["python", "-c", sleeps]}],
            "terminationGracePeriodSeconds": 1,
        },
    }
    create = [*kubectl, "create", "-f", "-"]
    subprocess.run(create, input=json.dumps(sleeper), text=True, check=True, timeout=30)
    wait = [*kubectl, "wait", "--for=condition=Ready", "pod/sleeper", "--timeout=30s"]
    subprocess.run(wait, check=True, timeout=40)
    assert any("time.sleep" in line for line in processes_that_name(str(state)))

    again = command("up", state=state)
    assert again.returncode == 5
    assert "already" in again.stderr or "is running" in again.stderr

    down = command("down", state=state)
    assert down.returncode == 0, down.stderr
    assert not [part.name for part in running.components if is_alive(part.identity)]
    assert processes_that_name(str(state)) == set()
    assert machine() == before
    assert {path.name for path in state.iterdir()} == {"lock", "logs", "supervisor.log"}
    assert command("status", state=state).returncode == 6


def test_a_devcluster_lives_on_without_a_node_and_is_gone_with_its_supervisor(tmp_path: Path) -> None:
    before = machine()
    state = tmp_path / "state"
    assert command("up", "--nodes", "2", state=state).returncode == 0
    running = StateFolder(state).read()
    assert running is not None
    identities = {part.name: part.identity for part in running.components}
    os.kill(identities["node-0"].pid, signal.SIGKILL)
    eventually(lambda: is_alive(identities["node-0"]), False)
    status = json.loads(command("status", "--output", "json", state=state).stdout)
    assert {part["name"]: part["alive"] for part in status["components"]} == {
        name: name != "node-0" for name in identities
    }
    assert is_alive(running.supervisor)

    os.kill(running.supervisor.pid, signal.SIGKILL)
    eventually(lambda: [name for name, identity in identities.items() if is_alive(identity)], [])
    eventually(lambda: processes_that_name(str(state)), set())
    assert machine() == before


def test_after_a_crash_it_starts_anew_and_a_dead_component_is_the_end_of_all(tmp_path: Path) -> None:
    """The crash itself is the test above; what it leaves is a state whose supervisor is gone."""
    with running_control_plane() as other:
        before = machine()
        folder = StateFolder(tmp_path / "state")
        folder.create()
        folder.write(DevclusterState(phase="Ready", supervisor=ProcessIdentity(2**22 + 1, "gone")))
        assert command("up", "--nodes", "0", state=folder.path).returncode == 0
        running = folder.read()
        assert running is not None
        scheduler = next(part for part in running.components if part.name == "kube-scheduler")
        os.kill(scheduler.identity.pid, signal.SIGKILL)
        eventually(lambda: is_alive(running.supervisor), False)
        assert not [part.name for part in running.components if is_alive(part.identity)]
        assert "kube-scheduler ended with code -9" in folder.supervisor_log.read_text()
        assert machine() == before
        assert is_alive(other.supervisor)  # one devcluster's end is not another's


def test_a_busy_port_is_named_and_nothing_is_left_running(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = command("up", "--nodes", "0", "--api-port", str(port), state=tmp_path / "state")
    assert refused.returncode == 4
    assert f"port {port} of 127.0.0.1 is taken" in refused.stderr
    assert "--api-port" in refused.stderr
    assert processes_that_name(str(tmp_path / "state")) == set()
