"""The `warmfleet` command and the local fleet."""
