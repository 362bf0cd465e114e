"""From run folders to findings: the engine of every comparison. Without drawing, without jax."""
