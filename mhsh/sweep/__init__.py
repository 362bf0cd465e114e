"""Sweeps: axes, the folder, the processes."""
