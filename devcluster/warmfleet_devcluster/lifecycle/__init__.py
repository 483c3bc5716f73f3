"""Starting and stopping a devcluster: the supervisor, its components, its startup messages.

Imports every room but `node`, which it starts as processes. Public names: `running` (`start_supervisor`,
`stop_devcluster`) for other processes; `supervisor` is the program that they start.
"""
