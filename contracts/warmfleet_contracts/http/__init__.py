"""The HTTP edge that router and worker share. The only part of the contracts that needs a web server."""
