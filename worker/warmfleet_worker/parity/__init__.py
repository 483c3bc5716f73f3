"""Compares an engine's arithmetic with a plain one in float64: `python -m warmfleet_worker.parity`.

`reference` computes a decoder in float64 over `attention.reference`, `rounding` bounds by how much rounding
in the engine's dtype can move a layer, `comparison` runs both and reports, `report` is what it prints.
Imports torch, `runner` and what is below. `warmfleet doctor --parity` starts it.
"""
