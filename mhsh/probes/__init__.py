"""Probes: what the layers of a model do."""
