"""Tables of examples: named arrays that share their first axis, and what is measured of them."""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence

import msgspec
import numpy as np
from jaxtyping import Int64, Integer

TRAIN, VALIDATION = SPLITS = ("train", "validation")

Examples = dict[str, np.ndarray]  # arrays that share their first axis: one index of it is one example


class ExampleGroup(msgspec.Struct, frozen=True):
    """Consecutive examples of a table whose arrays have the same shapes."""

    count: int = msgspec.field(name="rows")
    shapes: dict[str, tuple[int, ...]]  # of one example


class Table(abc.ABC):
    """Examples by their number, counted from 0. Threads may share it."""

    def __init__(self, groups: Sequence[ExampleGroup], kinds: Sequence[int]) -> None:
        """The examples of groups with the same `kind` are read together: their shapes are equal."""
        self.groups = groups  # all examples, in the order of their numbers
        self.group_ends = np.cumsum([group.count for group in groups], dtype=np.int64)
        self._kinds = np.array(kinds, np.int64)

    def __len__(self) -> int:
        """The number of examples."""
        return sum(group.count for group in self.groups)

    def take(self, numbers: Int64[np.ndarray, " n"], length: int | None = None) -> Examples:
        """The examples with these numbers, in this order.

        Args:
          length: the size of each array's second axis. Shorter examples are padded with zeros at
            their end. None: the examples must have equal shapes.

        Raises:
          ValueError: `length` is None and the examples differ in their shapes.
          UserError: a file of the table is damaged.
        """
        kinds = self._kinds[self.group_ends.searchsorted(numbers, "right")]
        parts = []
        for kind in np.unique(kinds).tolist() or [0]:
            chosen = np.flatnonzero(kinds == kind)
            parts.append((chosen, self._read(numbers[chosen], kind)))
        (_, first), *others = parts
        if length is None:
            if others:
                raise ValueError("the examples differ in their shapes and cannot be put together without a length")
            return first
        if not others and all(values.shape[1] == length for values in first.values()):
            return first
        whole = {name: np.zeros((len(numbers), length, *values.shape[2:]), values.dtype) for name, values in first.items()}
        for indices, part in parts:
            for name, values in part.items():
                whole[name][indices, : values.shape[1]] = values
        return whole

    @abc.abstractmethod
    def _read(self, numbers: Int64[np.ndarray, " n"], kind: int) -> Examples:
        """The examples with these numbers, all of one kind."""

    def all(self) -> Examples:
        """All examples, which must have equal shapes."""
        return self.take(np.arange(len(self)))


class ArrayTable(Table):
    """A table in memory, made of groups of examples with different shapes."""

    def __init__(self, groups: Sequence[Examples]) -> None:
        self._arrays = groups
        shapes = [{name: values.shape[1:] for name, values in group.items()} for group in groups]
        counted = [ExampleGroup(num_examples(group), shape) for group, shape in zip(groups, shapes, strict=True)]
        super().__init__(counted, range(len(groups)))

    def _read(self, numbers: Int64[np.ndarray, " n"], kind: int) -> Examples:
        inside = numbers - (self.group_ends[kind] - self.groups[kind].count)
        return {name: values[inside] for name, values in self._arrays[kind].items()}


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
    """The `count` of the validation examples that are training examples too, `of` all. Examples may
    be given as their hashes.
    """
    both = set(validation).intersection(train)
    return {"count": sum(example in both for example in validation), "of": len(validation)}


def format_overlap(both: Mapping[str, int]) -> str:
    """What is wrong with the validation data, given their `overlap`; empty: nothing."""
    if not both["count"]:
        return ""
    return (
        f"{both['count']:,} of {both['of']:,} validation examples are also training examples: on these the validation loss says "
        "nothing about new text"
    )


def unigram_entropy(tokens: Integer[np.ndarray, ...]) -> float:
    """The entropy -sum p ln p, in nats per token, of the frequencies p of the ids in `tokens`.

    It is the lowest loss, on these tokens, of a model that predicts the same distribution
    everywhere.
    """
    return entropy_of_counts(np.bincount(tokens.reshape(-1)))


def entropy_of_counts(counts: Integer[np.ndarray, " V"]) -> float:
    """`unigram_entropy`, given how often every id occurs."""
    frequencies = counts[counts > 0] / max(1, counts.sum())
    return float(-(frequencies * np.log(frequencies)).sum())
