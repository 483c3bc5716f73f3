"""Where endpoints come from: a fixed list, a file, or a Kubernetes cluster.

`base` defines `Endpoint` and `Discovery`; `static.StaticDiscovery` is a fixed list,
`endpoints_file.EndpointsFile` follows a file, `kubernetes.KubernetesDiscovery` ModelDeployments and
EndpointSlices. The lowest room of the router: imports none of the others.
"""
