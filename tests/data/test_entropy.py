"""The entropy of token frequencies."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mhsh.data.tables import unigram_entropy


def test_by_hand() -> None:
    # Frequencies 1/2, 1/4, 1/4: 1.5 bits.
    assert unigram_entropy(np.array([[7, 7], [3, 9]])) == pytest.approx(1.5 * math.log(2), abs=1e-12)
    assert unigram_entropy(np.array([4, 4, 4])) == 0
