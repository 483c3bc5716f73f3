"""A stand-in for vLLM, for tests of the engine process around it."""
