"""Tables of examples: named arrays that share their first axis, and what is measured of them."""

from __future__ import annotations

import abc
import dataclasses
import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64, Integer

_UNKNOWN_WORTH_SAYING = 0.01

TRAIN, VALIDATION = SPLITS = ("train", "validation")

Examples = dict[str, np.ndarray]  # arrays that share their first axis: one index of it is one example


class ExampleTable(abc.ABC):
    """Examples of equal shapes by their number, counted from 0. Threads may share it."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of examples."""

    @abc.abstractmethod
    def take(self, numbers: Int64[np.ndarray, " n"]) -> Examples:
        """The examples with these numbers, in this order."""

    def all(self) -> Examples:
        """All examples."""
        return self.take(np.arange(len(self)))


@dataclasses.dataclass(frozen=True)
class ArrayTable(ExampleTable):
    """A table in memory."""

    examples: Examples

    def __len__(self) -> int:
        return num_examples(self.examples)

    def take(self, numbers: Int64[np.ndarray, " n"]) -> Examples:
        return {name: values[numbers] for name, values in self.examples.items()}


def num_examples(examples: Examples) -> int:
    """The size of the first axis."""
    return len(next(iter(examples.values())))


def bounds_of(lengths: Sequence[int] | Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " bounds"]:
    """The bounds of consecutive runs with these lengths, from 0."""
    bounds = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds


def fingerprint_of(vocabulary: Iterable[bytes], tables: Mapping[str, Examples]) -> str:
    """SHA-256, in hex, over a vocabulary and the name, shape, dtype and bytes of every array."""
    digest = hashlib.sha256()
    for part in vocabulary:
        digest.update(part)
    for table, examples in tables.items():
        for name in sorted(examples):
            values = np.ascontiguousarray(examples[name])
            digest.update(f"{table}/{name} {values.shape} {values.dtype.str}\n".encode())
            digest.update(values.data)
    return digest.hexdigest()


def overlap(train: Iterable[Hashable], validation: Sequence[Hashable]) -> dict[str, int]:
    """The `count` of the validation examples (or hashes) that are training ones too, `of` all."""
    both = set(validation).intersection(train)
    return {"count": sum(example in both for example in validation), "of": len(validation)}


def format_overlap(both: Mapping[str, int]) -> str:
    """The problem of the validation data, given their `overlap`; empty: nothing."""
    if not both["count"]:
        return ""
    return (
        f"{both['count']:,} of {both['of']:,} validation examples are also training examples: on these the validation loss says "
        "nothing about new text"
    )


def format_unknown(counts: Mapping[str, Any], remedy: str) -> str:
    """The problem of the vocabulary, given the counts of the training data; empty: nothing."""
    fraction = counts["train"].get("unknown_character_fraction", 0.0) if isinstance(counts.get("train"), Mapping) else 0.0
    if fraction < _UNKNOWN_WORTH_SAYING:
        return ""
    return (
        f"{fraction:.1%} of the characters of the training data are in words that the vocabulary has no pieces for, and are "
        f"learnt as [UNK]: {remedy}"
    )


def unigram_entropy(tokens: Integer[np.ndarray, ...]) -> float:
    """The entropy -sum p ln p, in nats per token, of the frequencies p of the ids in `tokens`: the
    lowest loss of a model that predicts the same distribution everywhere.
    """
    return entropy_of_counts(np.bincount(tokens.reshape(-1)))


def entropy_of_counts(counts: Integer[np.ndarray, " V"]) -> float:
    """`unigram_entropy`, given how often every id occurs."""
    frequencies = counts[counts > 0] / max(1, counts.sum())
    return float(-(frequencies * np.log(frequencies)).sum())
