"""What is translation's own in `mhsh prepare`: sentence pairs, cleaned and split, as rows of both
sides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

from mhsh.config.schema import TranslationDataConfig, to_dict
from mhsh.data.entropy import entropy_of_counts
from mhsh.data.prepare import Preparation, Say
from mhsh.data.pretraining.packing import Rows
from mhsh.data.shards import ZSTD
from mhsh.data.splits import SPLITS
from mhsh.data.staging import Chunk, Texts
from mhsh.data.tokenizers.subword import SubwordTokenizer, load_fitting_subword, load_subword, train_subword
from mhsh.data.translation.packing import encode_rows, split_counts
from mhsh.data.translation.pairs import CleaningCounts, Pair, check_split, read_pairs, split_pairs, validation_pairs
from mhsh.run_folder import TOKENIZER_FILE


@dataclasses.dataclass(frozen=True)
class TranslationPreparation(Preparation[SubwordTokenizer]):
    """The rows of sentence pairs; an item of a chunk is a line `source<TAB>target`, as cleaned
    sentences have neither in them.
    """

    items: ClassVar[str] = "pairs"
    items_per_shard: ClassVar[int] = 20_000
    vocab_name: ClassVar[str] = TOKENIZER_FILE
    packing: ClassVar[str] = ZSTD  # seven arrays that repeat each other

    @property
    def least_items(self) -> int:
        """One pair makes a row."""
        return 1

    @property
    def _data(self) -> TranslationDataConfig:
        return cast(TranslationDataConfig, self.config.data)

    def job(self) -> dict[str, Any]:
        """The data section, a given vocabulary by its content, and the size of one to learn."""
        fields = to_dict(self._data)
        if self._data.vocab_path:
            fields["vocab_path"] = load_subword(Path(self._data.vocab_path).expanduser()).fingerprint
        return {"model.vocab_size": self.config.model.vocab_size, **{f"data.{name}": value for name, value in fields.items()}}

    def streams(self) -> Sequence[Iterable[Texts]]:
        """The pairs that validation has of its own, where it has, and those of data.source."""
        own = validation_pairs(self._data)
        return [*([] if own is None else [own]), read_pairs(self._data.source)]

    def new_counts(self) -> CleaningCounts:
        """As `Source.new_counts`."""
        return CleaningCounts()

    def split(self, streams: Sequence[Iterable[Texts]], counts: CleaningCounts) -> Iterator[tuple[str, str]]:
        """See `pairs.split_pairs`."""
        *own, pairs = cast(Sequence[Iterable[Pair]], streams)
        for split, pair in split_pairs(pairs, own[0] if own else None, self._data, counts):
            yield split, f"{pair.source}\t{pair.target}\n"

    def check(self, sizes: Mapping[str, int], counts: CleaningCounts) -> None:
        """See `pairs.check_split`."""
        check_split(sizes, self._data, counts)

    def new_vocabulary(self, texts: Iterable[str], say: Say) -> SubwordTokenizer:
        """As `Preparation.new_vocabulary`."""
        data, vocab_size = self._data, self.config.model.vocab_size
        if data.vocab_path:
            return load_fitting_subword(Path(data.vocab_path).expanduser(), data.tokenizer, vocab_size)
        say(f"learning a {data.tokenizer} vocabulary")
        return train_subword(data.tokenizer, texts, vocab_size)

    def read_vocabulary(self, path: Path) -> SubwordTokenizer:
        """As `Preparation.read_vocabulary`."""
        return load_subword(path)

    def texts(self, content: str) -> Iterator[str]:
        """The sentences of both languages, pair by pair."""
        for pair in _pairs(content):
            yield from pair

    def encode(self, content: str, chunk: Chunk, tokenizer: SubwordTokenizer) -> tuple[Sequence[Rows], dict[str, Any]]:
        """See `translation_rows.encode_rows`."""
        groups, sums = encode_rows(tokenizer, _pairs(content), self._data)
        return [*groups.values()], sums

    def meta(self) -> dict[str, Any]:
        """As `Preparation.meta`."""
        return {"layout": self._data.layout, "sequence_length": self._data.sequence_length}

    def counts(self, sums: Mapping[str, Any], split: str, tokenizer: SubwordTokenizer) -> dict[str, Any]:
        """See `translation_rows.split_counts`."""
        return split_counts(sums, self._data, split)

    def entropy(self, sums: Mapping[str, Any], tokenizer: SubwordTokenizer) -> float:
        """Of the targets."""
        return entropy_of_counts(sums["target_counts"])

    def describe(self, counts: Mapping[str, Any]) -> Iterator[str]:
        """As `Preparation.describe`."""
        yield (
            f"pairs read {counts['read']:,}: {counts['empty']:,} empty, {counts['duplicates']:,} duplicates, "
            f"{counts['in_both_splits']:,} left to validation"
        )
        for split in SPLITS:
            of = counts[split]
            yield (
                f"{split}: {of['pairs']:,} pairs ({of['too_long']:,} too long and {of['unlike']:,} too unlike left out), "
                f"{of['source_tokens']:,} source and {of['target_tokens']:,} target tokens in {of['rows']:,} rows, "
                f"{of['source_padding_fraction']:.1%} and {of['target_padding_fraction']:.1%} padding"
            )


def _pairs(content: str) -> list[Pair]:
    return [Pair(*line.split("\t")) for line in content.split("\n")[:-1]]
