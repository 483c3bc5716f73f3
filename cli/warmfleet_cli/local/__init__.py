"""The local fleet of `warmfleet up`: its plan, its processes, their restarts and its state on disk.

`plan` decides what is started, `supervisor` starts and restarts it, `detached` runs it in the background.
`up`, `down` and `status` use it. Public besides: `state` (files on disk), `observe` (what runs), `ports`,
and for `bench` `child` and `log_file`. Imports contracts, `runtime` and the errors of the CLI.
"""
