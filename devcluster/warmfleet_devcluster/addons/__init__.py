"""The cluster's add-ons in one process: Services reach pods, names resolve, volumes appear."""
