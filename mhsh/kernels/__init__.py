"""Fused kernels in Pallas for TPUs, and what they share with plain code."""
