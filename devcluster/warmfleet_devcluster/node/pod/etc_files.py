"""The files that every container of a pod finds in /etc. Pure."""

from typing import Any

Json = dict[str, Any]


def pod_hostname(pod: Json) -> str:
    """The host name inside the pod's containers, at most 63 characters."""
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])[:63]


def etc_files(pod: Json, pod_ip: str, dns: str, cluster_domain: str) -> dict[str, str]:
    """hosts, hostname and resolv.conf, after dnsPolicy and dnsConfig."""
    return {
        "/etc/hosts": _hosts(pod, pod_ip, cluster_domain),
        "/etc/hostname": pod_hostname(pod) + "\n",
        "/etc/resolv.conf": _resolver(pod, dns, cluster_domain),
    }


def _hosts(pod: Json, pod_ip: str, cluster_domain: str) -> str:
    hostname = pod_hostname(pod)
    names = [hostname]
    if pod["spec"].get("subdomain"):
        names.insert(
            0, f"{hostname}.{pod['spec']['subdomain']}.{pod['metadata']['namespace']}.svc.{cluster_domain}"
        )
    lines = [
        "127.0.0.1\tlocalhost",
        "::1\tlocalhost ip6-localhost ip6-loopback",
        f"{pod_ip}\t{' '.join(names)}",
    ]
    lines += [
        f"{alias['ip']}\t{' '.join(alias['hostnames'])}" for alias in pod["spec"].get("hostAliases", [])
    ]
    return "\n".join(lines) + "\n"


def _resolver(pod: Json, dns: str, cluster_domain: str) -> str:
    namespace = pod["metadata"]["namespace"]
    config = pod["spec"].get("dnsConfig") or {}
    if pod["spec"].get("dnsPolicy", "ClusterFirst") == "None":
        servers, searches, options = [], [], {}
    else:
        servers = [dns]
        searches = [f"{namespace}.svc.{cluster_domain}", f"svc.{cluster_domain}", cluster_domain]
        options = {"ndots": "5"}
    servers = [*servers, *config.get("nameservers", [])]
    searches = [*searches, *config.get("searches", [])]
    options |= {option["name"]: option.get("value", "") for option in config.get("options", [])}
    lines = [f"nameserver {server}" for server in servers]
    if searches:
        lines.append("search " + " ".join(searches))
    if options:
        lines.append("options " + " ".join(f"{k}:{v}" if v else k for k, v in options.items()))
    return "\n".join(lines) + "\n"
