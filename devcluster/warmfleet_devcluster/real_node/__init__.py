"""A node as clusters have them, on this machine: Kubernetes' own kubelet, containerd, runc and CNI plugins.

Started as `python -m warmfleet_devcluster.real_node` inside the cluster's network; it needs root and the
programs that `programs` looks for. Modules: `settings` (its command line), `configuration` (files of kubelet,
containerd and CNI; pure), `pause_image` (of a pod's sandbox), `inside` (the first process of the node's own
PID and mount namespaces), `cgroups` (removes what a kubelet leaves). May import `network` and `errors`.
"""
