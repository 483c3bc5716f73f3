"""Requests that must get equal bits however they are computed: random schedules, and a fleet under load."""
