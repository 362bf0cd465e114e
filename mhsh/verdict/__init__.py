"""What runs show: one engine of verdicts, without jax and without pictures."""
