"""A real Kubernetes control plane without containers, for tests, laptops and teaching."""
