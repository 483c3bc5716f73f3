"""Routers and fleets for tests, in this process or as processes, before stub or real workers."""
