"""What kube-proxy does: one nftables table forwards ClusterIPs to pods; it is replaced as a whole."""

from collections.abc import Sequence
from typing import Final

from warmfleet_devcluster.network import netfilter
from warmfleet_devcluster.network.endpoints import Frontend

TABLE: Final = "warmfleet-services"
_BEFORE_ROUTING: Final = -100
_BEFORE_TRANSLATION: Final = -110
_AFTER_ROUTING: Final = 100


def service_rules(found: Sequence[Frontend]) -> list[bytes]:
    """The messages that replace the table. Packets of established connections bypass the rules."""
    messages = [
        # Deleting a missing table is an error, so it is made first.
        netfilter.new_table(TABLE),
        netfilter.delete_table(TABLE),
        netfilter.new_table(TABLE),
    ]
    # From pods, and from processes beside the API server.
    for chain, hook in (("from-pods", netfilter.PREROUTING), ("from-here", netfilter.OUTPUT)):
        messages.append(netfilter.new_chain(TABLE, chain, kind="nat", hook=hook, priority=_BEFORE_ROUTING))
        messages += [
            netfilter.new_rule(TABLE, chain, rule) for frontend in found for rule in _translations(frontend)
        ]
    for chain, hook in (("refused-to-pods", netfilter.FORWARD), ("refused-here", netfilter.OUTPUT)):
        messages.append(
            netfilter.new_chain(TABLE, chain, kind="filter", hook=hook, priority=_BEFORE_TRANSLATION)
        )
        messages += [
            netfilter.new_rule(TABLE, chain, [*_to(frontend), *netfilter.refused(frontend.protocol)])
            for frontend in found
            if not frontend.backends
        ]
    messages.append(
        netfilter.new_chain(
            TABLE, "hairpins", kind="nat", hook=netfilter.POSTROUTING, priority=_AFTER_ROUTING
        )
    )
    # A pod that reaches itself through its Service would answer itself directly, with the wrong address.
    pods = sorted({address for frontend in found for address, _ in frontend.backends})
    messages += [
        netfilter.new_rule(
            TABLE,
            "hairpins",
            [*netfilter.from_address(pod), *netfilter.to_address(pod), *netfilter.source_becomes_ours()],
        )
        for pod in pods
    ]
    return messages


def _translations(frontend: Frontend) -> list[list[bytes]]:
    """One rule per backend: the first takes one in n, the next one in n - 1 of the rest, the last all."""
    count = len(frontend.backends)
    return [
        [
            *_to(frontend),
            *(netfilter.one_in(count - index) if index < count - 1 else ()),
            *netfilter.destination_becomes(address, port),
        ]
        for index, (address, port) in enumerate(frontend.backends)
    ]


def _to(frontend: Frontend) -> list[bytes]:
    return [*netfilter.to_address(frontend.address), *netfilter.to_port(frontend.protocol, frontend.port)]
