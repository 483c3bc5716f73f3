"""The local fleet of `warmfleet up`: its plan, its processes, their number and restarts, its state on disk.

`plan` decides what is started, `bounds` how many workers there may be, `hub_model` fetches from the hub,
`model_folder` finds what is here already. `supervisor` runs it: `members` keeps each `member` running,
`scaling_loop` adds and removes workers as `autoscaler` decides, by the policy of the operator, from what
`fleet_routers` report. `detached` runs it in the background. `up`, `down` and `status` use it. Public
besides: `state` (files on disk), `observe` (what runs), `events`, `ports`, for `bench` `child` and
`log_file`, and for `model` `model_folder`. Imports contracts, `runtime`, the worker's fetch and sizes, the
operator's pure modules about replicas and the errors of the CLI.
"""
