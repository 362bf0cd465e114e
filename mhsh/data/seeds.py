"""The seeds of the data, one for each purpose, all derived from data.seed."""

from __future__ import annotations

import numpy as np

DOCUMENT_SPLIT = 1
TRAIN_PAIRS = 2
VALIDATION_PAIRS = 3
EXAMPLE_ORDER = 4
MASKING = 5
VALIDATION_MASKING = 6
PAIR_SPLIT = 7
BATCH_ORDER = 8
NUMBERS = 9
ARTICLE_SPLIT = 10


def derived_seed(seed: int, purpose: int) -> int:
    """A 32-bit seed for one purpose, unrelated to those of other purposes and other seeds."""
    return int(np.random.SeedSequence((seed, purpose)).generate_state(1, np.uint32)[0])
