"""The process node: a stand-in for the kubelet that runs the pods bound to it as processes of this machine.

Rooms, top to bottom: `kubelet_api` serves logs, exec and port-forward; `pod` runs one pod, `container` one
container; `volumes` makes folders; `references` reads what a manifest names; `host` is this machine's
images and network. Beside them, `process_node` follows the API server and starts pods, `heartbeat` renews
Lease and status, `node_object` builds the Node, `errors` is what its rooms raise. A room imports those
below it. Public names: `process_node.ProcessNode`, `settings.NodeSettings`; run it by
`python -m warmfleet_devcluster.node`.
"""
