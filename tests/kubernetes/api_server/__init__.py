"""What a real API server with its controllers and scheduler is enough for: no pod runs."""
