"""Manifests and the CustomResourceDefinition for tests: valid, broken, generated, rendered."""
