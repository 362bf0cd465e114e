"""Training and validation: their names, and which text is for which."""

from __future__ import annotations

import functools
import hashlib

from mhsh.data.seeds import derived_seed

TRAIN, VALIDATION = SPLITS = ("train", "validation")


def is_held_out(text: str, fraction: float, seed: int, purpose: int) -> bool:
    """Whether a text is for validation, by a hash of it and of (seed, purpose): a share of
    `fraction` of all texts.

    That is by chance, not by count, so that no text hangs on what other texts there are, equal
    texts stay together, and a corpus can be split as it is read.
    """
    digest = hashlib.blake2b(text.encode("utf-8"), key=_key(seed, purpose), digest_size=8).digest()
    return int.from_bytes(digest, "little") < fraction * 2**64


@functools.cache
def _key(seed: int, purpose: int) -> bytes:
    return derived_seed(seed, purpose).to_bytes(4, "little")
