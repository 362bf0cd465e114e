"""Fixtures of the tests of training."""

from tests.training.optimizers import params, settings

__all__ = ["params", "settings"]  # fixtures
