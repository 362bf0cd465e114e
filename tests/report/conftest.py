"""Planted runs for the tests of reports."""

from tests.planted import make_run, make_shared_run

__all__ = ["make_run", "make_shared_run"]  # fixtures
