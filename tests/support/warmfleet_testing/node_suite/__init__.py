"""One list of tests for every kind of node: what a pod sees (`pods`), what the node serves (`node_api`)."""
