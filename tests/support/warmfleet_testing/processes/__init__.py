"""Processes and sockets for tests: ports, limits, logs, threads with servers, proxies with faults."""
