"""Planted runs for the tests of reports, and a planted report."""

import pytest

from mhsh.report.report import Report
from tests.planted import make_run, make_shared_run
from tests.report.reports import planted_report

__all__ = ["make_run", "make_shared_run"]  # fixtures


@pytest.fixture(scope="module")
def report() -> Report:
    return planted_report()
