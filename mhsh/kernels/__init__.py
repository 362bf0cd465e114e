"""Fused kernels, each beside the plain form that defines it, and what both share."""
