"""Bench files side by side."""
