"""`mhsh bench` and `mhsh bench suite`."""
