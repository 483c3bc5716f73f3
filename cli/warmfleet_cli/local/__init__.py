"""The local fleet of `warmfleet up`: its plan, its processes, their restarts and its state on disk.

`plan` decides what is started, `supervisor` starts and restarts it, `detached` runs it in the background.
`up`, `down` and `status` use it. Imports contracts, `runtime` and the errors of the CLI.
"""
