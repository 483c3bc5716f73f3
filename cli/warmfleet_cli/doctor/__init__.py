"""`warmfleet doctor`: what this machine brings for an engine, and what to do where that is too little.

`command` is the command, `facts` reads the machine, `checks` judges what it read; pure. May import the rest
of the CLI below its commands. Imports no torch. Public name: `command.doctor`.
"""
