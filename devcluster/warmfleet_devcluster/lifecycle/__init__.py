"""Starts, supervises and stops the processes of a devcluster.

`running` is what a command uses, `supervisor` is the process that owns the cluster. Imports
`control_plane` and `network`.
"""
