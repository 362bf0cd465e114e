"""The engine of every comparison: it makes findings of run folders, without drawing or jax."""
