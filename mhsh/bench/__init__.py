"""Timing mhsh beside its twins, its peers and the device's own limits, in turns."""
