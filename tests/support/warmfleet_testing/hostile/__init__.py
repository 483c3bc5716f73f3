"""Hostile requests by class of advisory, and the fleet that has to survive them."""
