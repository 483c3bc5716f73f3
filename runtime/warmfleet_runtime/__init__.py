"""Code that warmfleet's processes share without having to agree on it.

HTTP servers, the Kubernetes client, files, child processes. A change here changes no message between two
processes; what they must agree on is in `warmfleet_contracts`. Imports contracts, and nothing else of ours.
"""
