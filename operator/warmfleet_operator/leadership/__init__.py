"""Leader election: `lease` elects by a Lease object, `fence` is the deadline that every write is checked against."""
