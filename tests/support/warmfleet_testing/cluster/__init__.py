"""Real clusters for tests: control plane, nodes, operator, and what faults are done to them."""
