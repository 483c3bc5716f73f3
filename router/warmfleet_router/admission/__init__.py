"""Admits requests, queues what exceeds capacity, assigns workers.

Imports `routing` (what a worker costs and whether it has capacity), never `proxy` or `api`.
"""
