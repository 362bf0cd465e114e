"""The names of the splits, training and validation, the rule that assigns a text to one, and what
is in both.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence

from mhsh.data.seeds import derived_seed

TRAIN, VALIDATION = SPLITS = ("train", "validation")


def is_held_out(text: str, fraction: float, seed: int, purpose: int) -> bool:
    """Whether a text belongs to validation, by a hash of the text and of (seed, purpose).

    About `fraction` of all texts do. The side of a text does not depend on other texts, equal texts
    stay together, and a corpus can be split while it is read.
    """
    digest = hashlib.blake2b(text.encode("utf-8"), key=_key(seed, purpose), digest_size=8).digest()
    return int.from_bytes(digest, "little") < fraction * 2**64


def overlap(train: Iterable[Hashable], validation: Sequence[Hashable]) -> dict[str, int]:
    """The `count` of the validation examples that stand in the training data too, `of` all; by the
    raw examples, or by their hashes.
    """
    both = set(validation).intersection(train)
    return {"count": sum(example in both for example in validation), "of": len(validation)}


def format_overlap(found: Mapping[str, int]) -> str:
    """What is wrong with the validation data in which `overlap` found this; empty: nothing."""
    if not found["count"]:
        return ""
    return (
        f"{found['count']:,} of {found['of']:,} validation examples are also training examples: on these the validation loss says "
        "nothing about new text"
    )


@functools.cache
def _key(seed: int, purpose: int) -> bytes:
    return derived_seed(seed, purpose).to_bytes(4, "little")
