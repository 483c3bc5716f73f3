"""What brings up a cluster of its own, to break it or to take it down."""
