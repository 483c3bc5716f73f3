"""The process node: a stand-in for the kubelet that runs the pods bound to it as processes of this machine.

One process serves several nodes. Decisions are pure (`pod_status`, `environment`, `identity`,
`probe_state`, `backoff`, `volume_contents`); `pod_runner` and `container_runner` act on them; `launcher`
is what runs inside a container before its program.
"""
