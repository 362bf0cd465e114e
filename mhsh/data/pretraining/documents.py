"""What is done to documents before anything is learnt: equal ones left out, training and validation
parted.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping

from mhsh.config.schema import DataConfig, ModelConfig
from mhsh.data.seeds import DOCUMENT_SPLIT
from mhsh.data.splits import SPLITS, TRAIN, VALIDATION, is_held_out
from mhsh.errors import UserError


@dataclasses.dataclass
class DocumentCounts:
    """What `split_documents` saw and left out, counted as it goes."""

    read: int = 0
    empty: int = 0  # documents without a character
    duplicates: int = 0  # documents equal to one before


def split_documents(documents: Iterable[str], data: DataConfig, counts: DocumentCounts) -> Iterator[tuple[str, str]]:
    """Split and text of every document that is not empty and was not there before, in their order.

    data.validation_fraction of them is held out, by a hash of the text and data.seed (see
    `is_held_out`). Finding the equal ones takes about 100 bytes a document.

    Args:
      counts: is added to, document by document.
    """
    seen: set[bytes] = set()
    for document in documents:
        counts.read += 1
        if not document:
            counts.empty += 1
            continue
        digest = hashlib.blake2b(document.encode("utf-8"), digest_size=16).digest()
        if digest in seen:
            counts.duplicates += 1
            continue
        seen.add(digest)
        held_out = is_held_out(document, data.validation_fraction, data.seed, DOCUMENT_SPLIT)
        yield VALIDATION if held_out else TRAIN, document


def least_documents(model: ModelConfig) -> int:
    """The documents that a run of rows needs: a random sentence comes from another document."""
    return 2 if model.next_sentence else 1


def check_split(sizes: Mapping[str, int], model: ModelConfig, data: DataConfig, counts: DocumentCounts) -> None:
    """Raises UserError where a split has not the documents it needs; `sizes` has those of each."""
    least = least_documents(model)
    for split in SPLITS:
        if sizes[split] < least:
            raise UserError(
                f"data.source = {data.source!r} leaves {sizes[split]} documents for {split}, which needs {least} ({counts.read} "
                f"read, {counts.empty} empty, {counts.duplicates} duplicates, data.validation_fraction = "
                f"{data.validation_fraction}); give more documents (a blank line ends one), or change data.validation_fraction or "
                "data.seed"
            )
