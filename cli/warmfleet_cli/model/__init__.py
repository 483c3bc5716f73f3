"""`warmfleet model`: fetch and list models, and compute the memory that they need.

`command` has the commands, `size` computes what a model needs for so many users, as engine, pods and
scheduler do. May import the rest of the CLI below its commands. Public name: `command.model_app`.
"""
