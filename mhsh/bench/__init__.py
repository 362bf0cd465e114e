"""Timing configs beside each other, in alternating turns."""
