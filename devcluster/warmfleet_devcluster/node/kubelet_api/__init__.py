"""The kubelet's HTTPS API: logs, exec, port-forward. Only the API server may call it.

Imports `process_node` and the rooms below it. Public name: `server.KubeletServer`.
"""
