"""The cluster's network namespace: Services and NetworkPolicies by nftables, DNS, a port on the host.

Imports `errors` only. Public names: `namespace.NetworkNamespace`, `forwarder.HostForwarder`, `addresses`,
`service_rules.service_rules`, `endpoints` (addresses behind a Service), `policy_rules.policy_rules`,
`policies` (what NetworkPolicies allow), `netfilter` (messages to nftables), `names.make_zone`,
`dns_server.DnsServer`.
"""
