"""Attention over the paged KV arena."""
