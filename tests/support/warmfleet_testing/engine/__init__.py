"""Engines, workers and models for tests: tiny models, runners without a model, faulty ones, oracles."""
