"""`warmfleet top`: replicas, KV memory, misses, queue and the wanted number of replicas, refreshed.

`command` is the command, `readings` asks routers, `fleet_watch` makes views of successive readings with the
operator's own policy, `views` are those values, `screen` prints them. May import the rest of the CLI below
its commands, and `warmfleet_operator.scaling`. Public name: `command.top`.
"""
