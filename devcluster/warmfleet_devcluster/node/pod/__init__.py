"""One pod on a node: setup, containers, status, end. Imports the node's other rooms."""
