"""`warmfleet doctor`: what this machine brings for an engine, and how its kernels differ from plain ones.

`command` is the command, `facts` reads the machine, `checks` judges what it read; pure. `parity` starts the
worker's comparison with float64 and prints it. May import the rest of the CLI below its commands. Imports no
torch. Public name: `command.doctor`.
"""
