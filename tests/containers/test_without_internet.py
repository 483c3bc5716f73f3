"""docs/how-to/air-gapped.md as it stands: its commands, the installing ones where no route leads out."""

import json
import re
import subprocess

import pytest

from warmfleet_testing.resources.chart_render import REPOSITORY

pytestmark = [pytest.mark.containers, pytest.mark.timeout(2400)]

DOCUMENT = REPOSITORY / "docs" / "how-to" / "air-gapped.md"
VALUES = REPOSITORY / "images.values.yaml"


def blocks():
    """The shell blocks of the section on files: outside, on every node, inside."""
    section = DOCUMENT.read_text().partition("### By files, without a registry\n")[2].partition("\n### ")[0]
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)


@pytest.fixture
def kept_values():
    """`make images` writes a file of the tree; one that is there comes back."""
    before = VALUES.read_bytes() if VALUES.exists() else None
    yield
    VALUES.unlink(missing_ok=True)
    if before is not None:
        VALUES.write_bytes(before)


@pytest.fixture
def uninstalled(release, worker_image):
    """The cluster without the chart: the document begins with its first install."""
    release.cluster.helm("uninstall", "warmfleet", "--namespace", "models", "--wait")
    release.kubectl("delete", "secrets,pods", "--all", "--wait")
    return release


@pytest.fixture
def archives():
    """Where the document's commands write them."""
    names = [REPOSITORY / f"warmfleet-{target}.tar" for target in ("operator", "router", "worker-cpu")]
    for name in names:
        name.unlink(missing_ok=True)
    yield names
    for name in names:
        name.unlink(missing_ok=True)


def test_the_commands_of_the_document_lead_to_an_answer_where_no_route_leads_out(
    store, uninstalled, kept_values, archives, figures
):
    outside, on_nodes, inside = blocks()
    store.shell(outside)
    cluster = uninstalled.cluster
    found_here = {
        "CONTAINERD_ADDRESS": str(uninstalled.node_folder / "containerd.sock"),
        "KUBECONFIG": str(cluster.folder.pki / "admin.kubeconfig"),
    }

    def run(script):
        command = cluster.inside("unshare", "--pid", "--fork", "--kill-child", "bash", "-euc", script)
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            env=cluster.environment | found_here,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("ip route show default") == ""
    run(on_nodes)
    for archive in archives:
        archive.unlink()
    with figures.timed("first answer after helm install, without internet"):
        printed = run(inside)
    answer = json.loads(printed.splitlines()[-1])
    assert answer["usage"]["completion_tokens"] > 0
    assert set(uninstalled.restarts().values()) == {0}
