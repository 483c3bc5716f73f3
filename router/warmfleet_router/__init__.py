"""The router: one HTTP address for the fleet. It sends each request to the worker where it costs least."""
