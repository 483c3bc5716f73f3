"""One container: environment, identity, process, probes, logs, restarts."""
