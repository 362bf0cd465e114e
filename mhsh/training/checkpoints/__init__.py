"""Checkpoints: saving and verifying them, restoring one, and starting another run from one."""
