"""The repository's documents and its Dockerfile as tests read them."""
