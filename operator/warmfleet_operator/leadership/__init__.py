"""Leader election: at most one replica of the operator writes.

`lease` elects by a Lease object, `fence` is the deadline that every write is checked
against. Imports `cluster`.
"""
