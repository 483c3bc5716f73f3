"""What needs nodes that run pods, on one cluster for all."""
