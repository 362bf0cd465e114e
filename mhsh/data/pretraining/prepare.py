"""What is pre-training's own in `mhsh prepare`: documents, each once, as rows for masked or causal
language models.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

from mhsh.config.schema import DataConfig, to_dict
from mhsh.data import sources
from mhsh.data.prepare import Preparation, Say
from mhsh.data.pretraining.documents import DocumentCounts, check_split, least_documents, split_documents
from mhsh.data.pretraining.packing import Rows
from mhsh.data.pretraining.rows import encode_documents, prepared_with, rows_entropy, split_counts
from mhsh.data.pretraining.vocabulary import new_vocabulary, read_vocabulary
from mhsh.data.shards import PLAIN
from mhsh.data.splits import SPLITS
from mhsh.data.staging import Chunk, Texts
from mhsh.data.tokenizers.wordpiece import Tokenizer
from mhsh.run_folder import WORDPIECE_FILE

# Of the data section, what is left to training: it decides no byte of the rows.
_LEFT_TO_TRAINING = ("max_predictions", "mask_fraction", "whole_word_masking")
# An empty line ends a document of a chunk; documents have none in them.
_END = "\n\n"


@dataclasses.dataclass(frozen=True)
class PretrainingPreparation(Preparation[Tokenizer]):
    """The rows of documents."""

    items: ClassVar[str] = "documents"
    items_per_shard: ClassVar[int] = 1000
    vocab_name: ClassVar[str] = WORDPIECE_FILE
    packing: ClassVar[str] = PLAIN  # nothing in a row follows from the rest of it

    @property
    def least_items(self) -> int:
        """See `documents.least_documents`."""
        return least_documents(self.config.model)

    @property
    def _data(self) -> DataConfig:
        return cast(DataConfig, self.config.data)

    def job(self) -> dict[str, Any]:
        """The layout of the rows, a given vocabulary by its content, and the version of the library
        that finds sentences.
        """
        model = self.config.model
        fields = {name: value for name, value in to_dict(self._data).items() if name not in _LEFT_TO_TRAINING}
        if self._data.vocab_path:
            fields["vocab_path"] = new_vocabulary((), model, self._data).fingerprint
        return {
            "sentencex": importlib.metadata.version("sentencex"),
            "model.objective": model.objective,
            "model.next_sentence": model.next_sentence,
            "model.vocab_size": model.vocab_size,
            **{f"data.{name}": value for name, value in fields.items()},
        }

    def streams(self) -> Sequence[Iterable[Texts]]:
        """The documents of data.source."""
        return [((document,) for document in sources.documents(self._data.source))]

    def new_counts(self) -> DocumentCounts:
        """As `Source.new_counts`."""
        return DocumentCounts()

    def split(self, streams: Sequence[Iterable[Texts]], counts: DocumentCounts) -> Iterator[tuple[str, str]]:
        """See `documents.split_documents`."""
        (stream,) = streams
        for split, document in split_documents((document for (document,) in stream), self._data, counts):
            yield split, document + _END

    def check(self, sizes: Mapping[str, int], counts: DocumentCounts) -> None:
        """See `documents.check_split`."""
        check_split(sizes, self.config.model, self._data, counts)

    def new_vocabulary(self, texts: Iterable[str], say: Say) -> Tokenizer:
        """As `Preparation.new_vocabulary`."""
        if self._data.tokenizer == "wordpiece" and not self._data.vocab_path:
            say("learning a wordpiece vocabulary")
        return new_vocabulary(texts, self.config.model, self._data)

    def read_vocabulary(self, path: Path) -> Tokenizer:
        """As `Preparation.read_vocabulary`."""
        return read_vocabulary(path, self.config.model, self._data)

    def texts(self, content: str) -> Iterator[str]:
        """The documents."""
        return iter(_documents(content))

    def encode(self, content: str, chunk: Chunk, tokenizer: Tokenizer) -> tuple[Sequence[Rows], dict[str, Any]]:
        """See `pretraining_rows.encode_documents`."""
        rows, sums = encode_documents(_documents(content), tokenizer, self.config.model, self._data, chunk.split, chunk.number)
        return [rows], sums

    def meta(self) -> dict[str, Any]:
        """See `pretraining_rows.prepared_with`."""
        return {name.partition(".")[2]: value for name, value in prepared_with(self.config.model, self._data).items()}

    def counts(self, sums: Mapping[str, Any], split: str, tokenizer: Tokenizer) -> dict[str, Any]:
        """See `pretraining_rows.split_counts`."""
        return split_counts(sums, tokenizer, self._data, split)

    def entropy(self, sums: Mapping[str, Any], tokenizer: Tokenizer) -> float:
        """See `pretraining_rows.rows_entropy`."""
        return rows_entropy(sums, tokenizer, self.config.model)

    def describe(self, counts: Mapping[str, Any]) -> Iterator[str]:
        """As `Preparation.describe`."""
        yield f"documents read {counts['read']:,}: {counts['empty']:,} empty, {counts['duplicates']:,} duplicates"
        pieces = "lines" if self.config.model.objective == "clm" else "sentences"
        for split in SPLITS:
            of = counts[split]
            yield (
                f"{split}: {of['documents']:,} documents ({of['empty_documents']:,} without a token left out), {of['sentences']:,} "
                f"{pieces} ({of['cut_sentences']:,} cut), {of['tokens']:,} tokens in {of['rows']:,} rows, "
                f"{of['padding_fraction']:.1%} padding, {of['dropped_tokens']:,} tokens dropped; {of['unknown_fraction']:.3%} of "
                f"the text unknown, {of['used_vocabulary']:.1%} of the vocabulary used"
            )


def _documents(content: str) -> list[str]:
    return content.split(_END)[:-1]
