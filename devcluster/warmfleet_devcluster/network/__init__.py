"""The cluster's network namespace, and what it offers: Services by nftables, DNS, a port on the host.

Imports `errors` only. Public names: `namespace.NetworkNamespace`, `forwarder.HostForwarder`, `addresses`,
`service_rules.service_rules`, `endpoints` (addresses behind a Service), `netfilter` (messages to nftables),
`names.make_zone`, `dns_server.DnsServer`.
"""
