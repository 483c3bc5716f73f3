"""What the machine gives a pod: network namespaces, images, paths."""
