"""Comparing runs from their folders alone, without jax."""
