"""Where endpoints come from: a fixed list, a file, or a Kubernetes cluster.

`base` defines `Endpoint` and `Discovery`; `static.StaticDiscovery` is a fixed list,
`kubernetes.KubernetesDiscovery` follows ModelDeployments and EndpointSlices. The lowest room of the router:
imports none of the others.
"""
