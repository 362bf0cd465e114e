"""Checkpoints: written, checked, read by one host for all, and started from."""
