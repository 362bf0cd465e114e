"""mhsh sweep-report: what a sweep has found so far, written into its folder; never imports jax."""

from __future__ import annotations


def run(folder: str) -> int:
    """Writes the report."""
    return 0
