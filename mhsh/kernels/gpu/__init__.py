"""The kernels for NVIDIA GPUs, in Pallas's Triton dialect; the modules above them define what they
compute, and choose.
"""
