"""What a network plugin does for NetworkPolicies: one nftables table, replaced as a whole.

Connections of nodes to pods pass no rule, so probes and `kubectl port-forward` always work.
"""

from collections.abc import Callable, Sequence
from typing import Final

from warmfleet_devcluster.network import netfilter
from warmfleet_devcluster.network.policies import Allowed, IsolatedPod

TABLE: Final = "warmfleet-policies"
_BETWEEN_PODS: Final = "between-pods"
_TO_THIS_MACHINE: Final = "to-this-machine"
"""The API server and the DNS server."""
_AFTER_TRANSLATION: Final = 0
"""Rules see the pod and the port behind a Service, not the Service's own."""


def policy_rules(pods: Sequence[IsolatedPod]) -> list[bytes]:
    """The messages that replace the table. A connection that was accepted once stays."""
    messages = [
        # Deleting a missing table is an error, so it is made first.
        netfilter.new_table(TABLE),
        netfilter.delete_table(TABLE),
        netfilter.new_table(TABLE),
    ]
    for chain, hook in ((_BETWEEN_PODS, netfilter.FORWARD), (_TO_THIS_MACHINE, netfilter.INPUT)):
        messages += [
            netfilter.new_chain(TABLE, chain, kind="filter", hook=hook, priority=_AFTER_TRANSLATION),
            netfilter.new_rule(TABLE, chain, [*netfilter.of_accepted_connection(), *netfilter.accepted()]),
        ]
    for pod in pods:
        itself, node = netfilter.from_address(pod.address), netfilter.to_address(pod.node_address)
        if pod.ingress is not None:
            chain = f"to-{pod.address}"
            messages += _chain(chain, [itself], pod.ingress, netfilter.from_network)
            messages.append(_jump(_BETWEEN_PODS, netfilter.to_address(pod.address), chain))
        if pod.egress is not None:
            chain = f"from-{pod.address}"
            always = [netfilter.to_address(pod.address), node]
            messages += _chain(chain, always, pod.egress, netfilter.to_network)
            messages += [_jump(base, itself, chain) for base in (_BETWEEN_PODS, _TO_THIS_MACHINE)]
    return messages


def _chain(
    chain: str,
    always: Sequence[list[bytes]],
    allowed: Sequence[Allowed],
    other_side: Callable[..., list[bytes]],
) -> list[bytes]:
    """Returns what is allowed, for the other direction's rules, and drops the rest."""
    matches = [*always, *(_matches(one, other_side) for one in allowed)]
    rules = [*([*match, *netfilter.returned()] for match in matches), netfilter.dropped()]
    return [
        netfilter.new_called_chain(TABLE, chain),
        *(netfilter.new_rule(TABLE, chain, rule) for rule in rules),
    ]


def _matches(allowed: Allowed, other_side: Callable[..., list[bytes]]) -> list[bytes]:
    found = other_side(allowed.network)
    for cidr in allowed.excepted:
        found += other_side(cidr, outside=True)
    if allowed.last_port:
        found += netfilter.to_ports(allowed.protocol, allowed.first_port, allowed.last_port)
    elif allowed.protocol:
        found += netfilter.of_protocol(allowed.protocol)
    return found


def _jump(base: str, match: list[bytes], chain: str) -> bytes:
    return netfilter.new_rule(TABLE, base, [*match, *netfilter.jump_to(chain)])
