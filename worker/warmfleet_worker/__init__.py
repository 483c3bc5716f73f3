"""The inference engine and its OpenAI-compatible HTTP server."""
