"""The names of the splits, training and validation, and the rule that assigns a text to one."""

from __future__ import annotations

import functools
import hashlib

from mhsh.data.seeds import derived_seed

TRAIN, VALIDATION = SPLITS = ("train", "validation")


def is_held_out(text: str, fraction: float, seed: int, purpose: int) -> bool:
    """Whether a text belongs to validation, by a hash of the text and of (seed, purpose).

    About `fraction` of all texts do. The side of a text does not depend on other texts, equal texts
    stay together, and a corpus can be split while it is read.
    """
    digest = hashlib.blake2b(text.encode("utf-8"), key=_key(seed, purpose), digest_size=8).digest()
    return int.from_bytes(digest, "little") < fraction * 2**64


@functools.cache
def _key(seed: int, purpose: int) -> bytes:
    return derived_seed(seed, purpose).to_bytes(4, "little")
