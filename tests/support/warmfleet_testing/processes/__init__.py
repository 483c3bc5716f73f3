"""Processes and sockets for tests: ports, limits, logs, proxies with faults."""
