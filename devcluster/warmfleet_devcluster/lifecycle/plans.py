"""What is started, with which command line, from settings and credentials. Pure."""

import sys
from collections.abc import Sequence
from typing import Final

from warmfleet_devcluster.control_plane.binaries import Binaries
from warmfleet_devcluster.control_plane.credentials import Credentials, NodeCredentials
from warmfleet_devcluster.lifecycle.component import ComponentPlan
from warmfleet_devcluster.network.addresses import DNS_ADDRESS, node_address, node_name, pod_network
from warmfleet_devcluster.settings import DevclusterSettings
from warmfleet_devcluster.state import StateFolder

_NODE_GRACE_SECONDS: Final = 10.0
"""A node ends its pods first."""


def tool_plan(binaries: Binaries, name: str, flags: Sequence[str]) -> ComponentPlan:
    """A program of the control plane."""
    return ComponentPlan(name=name, argv=(str(binaries[name]), *flags))


def addons_plan(folder: StateFolder, credentials: Credentials) -> ComponentPlan:
    """Services, names and volumes."""
    flags = ["--kubeconfig", str(credentials.inner_admin), "--volumes", str(folder.volumes)]
    return _python_plan("addons", "warmfleet_devcluster.addons", flags)


def node_plan(
    index: int, settings: DevclusterSettings, folder: StateFolder, own: NodeCredentials, client_ca: str
) -> ComponentPlan:
    """One process node."""
    name = node_name(index)
    values = {
        "--name": name,
        "--kubeconfig": str(own.kubeconfig),
        "--state": str(folder.part(name)),
        "--address": str(node_address(index)),
        "--serving-certificate": str(own.serving.certificate),
        "--serving-key": str(own.serving.key),
        "--client-ca": client_ca,
        "--images": str(folder.images),
        "--pod-cidr": str(pod_network(index)),
        "--dns": str(DNS_ADDRESS),
    }
    flags = [part for pair in values.items() for part in pair]
    for resource, amount in settings.pretend.items():
        flags += ["--pretend", f"{resource}={amount}"]
    return _python_plan(
        name, "warmfleet_devcluster.node", flags, essential=False, grace_seconds=_NODE_GRACE_SECONDS
    )


def real_node_plan(
    settings: DevclusterSettings, folder: StateFolder, own: NodeCredentials, client_ca: str
) -> ComponentPlan:
    """The node with a kubelet and containers, after the process nodes."""
    assert settings.real_node is not None
    index = settings.nodes
    name = node_name(index)
    values = {
        "--name": name,
        "--kubeconfig": str(own.kubeconfig),
        "--state": str(folder.part(name)),
        "--address": str(node_address(index)),
        "--pod-cidr": str(pod_network(index)),
        "--kubelet": str(settings.real_node / "kubelet"),
        "--pause": str(settings.real_node / "pause"),
        "--client-ca": client_ca,
        "--serving-certificate": str(own.serving.certificate),
        "--serving-key": str(own.serving.key),
        "--dns": str(DNS_ADDRESS),
    }
    flags = [part for pair in values.items() for part in pair]
    return _python_plan(
        name,
        "warmfleet_devcluster.real_node",
        flags,
        essential=False,
        grace_seconds=_NODE_GRACE_SECONDS,
    )


def hollow_plan(settings: DevclusterSettings, credentials: Credentials) -> ComponentPlan:
    """All hollow nodes."""
    flags = ["--kubeconfig", str(credentials.inner_admin), "--count", str(settings.hollow)]
    return _python_plan("hollow", "warmfleet_devcluster.hollow", flags)


def _python_plan(
    name: str,
    module: str,
    flags: Sequence[str],
    *,
    essential: bool = True,
    grace_seconds: float = 0.0,
) -> ComponentPlan:
    return ComponentPlan(
        name=name,
        argv=(sys.executable, "-m", module, *flags),
        environment={"PYTHONUNBUFFERED": "1"},
        essential=essential,
        grace_seconds=grace_seconds,
    )
