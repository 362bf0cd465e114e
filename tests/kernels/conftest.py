"""Interpreted kernels are compiled once for every shape and run once."""

from __future__ import annotations

import pytest

from tests.compiling import least_optimized

compile_fast = pytest.fixture(scope="module", autouse=True)(least_optimized)
