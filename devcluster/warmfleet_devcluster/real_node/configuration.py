"""The files that kubelet, containerd and CNI plugins read. Pure."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from warmfleet_devcluster.real_node.settings import RealNodeSettings

PAUSE_IMAGE: Final = "registry.devcluster.local/pause:1"
CNI_PLUGINS: Final = Path("/usr/lib/cni")
"""Where Debian's package containernetworking-plugins has them."""

KERNEL_SETTINGS: Final[Mapping[str, str]] = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""What a kubelet sets for the whole machine. This node shows it files with these values instead."""


def kubelet_config(settings: RealNodeSettings) -> dict[str, Any]:
    """A KubeletConfiguration: what a kubelet does by default, only sooner, and not to the whole machine."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": settings.address,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(settings.client_ca)},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "tlsCertFile": str(settings.serving_certificate),
        "tlsPrivateKeyFile": str(settings.serving_key),
        "containerRuntimeEndpoint": f"unix://{settings.containerd_socket}",
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,  # the cluster's Services are in nftables
        "clusterDNS": [settings.dns],
        "clusterDomain": settings.cluster_domain,
        "resolvConf": str(settings.resolv_conf),
        # A minute by default: so late a changed Secret is in a volume, and a full volume is noticed.
        "syncFrequency": "10s",
        "volumeStatsAggPeriod": "10s",
        "podLogsDir": str(settings.state / "pod-logs"),
        "volumePluginDir": str(settings.state / "volume-plugins"),
        # The disk is shared with all else on this machine, and images cannot be pulled again.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
    }


def kubelet_command(settings: RealNodeSettings, config: Path) -> list[str]:
    """The kubelet's command line; `config` holds `kubelet_config`."""
    return [
        str(settings.kubelet),
        f"--config={config}",
        f"--kubeconfig={settings.kubeconfig}",
        f"--root-dir={settings.state / 'kubelet'}",
        f"--cert-dir={settings.state / 'kubelet-pki'}",
        f"--hostname-override={settings.name}",
        f"--node-ip={settings.address}",
    ]


def containerd_config(settings: RealNodeSettings) -> str:
    """TOML of containerd 1.6: nothing of it outside `settings.state`, and no registry."""
    values = {
        "root": settings.state / "containerd",
        "run": settings.state / "containerd-run",
        "socket": settings.containerd_socket,
        "plugins": CNI_PLUGINS,
        "cni": settings.cni_folder,
        "pause": PAUSE_IMAGE,
    }
    quoted = {name: json.dumps(str(value)) for name, value in values.items()}
    return """version = 2
root = {root}
state = {run}
[grpc]
address = {socket}
[plugins."io.containerd.grpc.v1.cri"]
disable_apparmor = true
# A process without CAP_SYS_RESOURCE, as root in many virtual machines, cannot lower the scores.
restrict_oom_score_adj = true
sandbox_image = {pause}
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = {plugins}
conf_dir = {cni}
""".format(**quoted)


def cni_config(settings: RealNodeSettings) -> dict[str, Any]:
    """A veth pair per pod and routes between them, so that the cluster's rules see every packet.

    On a bridge the answer of a Service's pod would reach a pod of the same node with the wrong source.
    """
    return {
        "cniVersion": "0.4.0",
        "name": "devcluster",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": False,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": settings.pod_cidr}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                    "dataDir": str(settings.state / "addresses"),
                },
            }
        ],
    }
