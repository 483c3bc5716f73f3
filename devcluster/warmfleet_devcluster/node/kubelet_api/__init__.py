"""The kubelet's HTTP API: logs, exec, port-forward."""
