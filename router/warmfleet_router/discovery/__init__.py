"""Where endpoints come from: a fixed list, a file, or a Kubernetes cluster.

`base` defines `Endpoint` and `Discovery`. The lowest room of the router: imports none of the others.
"""
