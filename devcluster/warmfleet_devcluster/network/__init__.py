"""The cluster's network: its namespace, Services as nftables rules, DNS, and the forwarder from the host."""
