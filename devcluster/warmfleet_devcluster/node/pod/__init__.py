"""One pod on a node: network, volumes, init containers, containers, status, deletion.

Imports `container` and the rooms below it. Public names: `runner.PodRunner`, `runner.NodeResources`;
`status` and `etc_files` are pure.
"""
