"""`mhsh score`: predictions of any system against references."""
