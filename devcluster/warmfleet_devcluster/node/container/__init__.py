"""One container of a pod: environment, user, process, probes, log, restarts.

Imports `volumes`, `references` and `host`. Public: `runner.ContainerRunner`, `process.ContainerProcess`,
`backoff`, `state` (what a pod's status shows), `pod_environment` (what the pod hands in), `log_file`.
`launcher` is a script: it runs inside a container before its program.
"""
