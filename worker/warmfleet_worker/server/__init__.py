"""The worker's HTTP server; it holds no model and imports no torch."""
