"""Documents to rows of pre-training, and what is counted on the way: the same for a corpus in
memory and a shard on disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mhsh.config.schema import DataConfig, ModelConfig
from mhsh.data.entropy import entropy_of_counts
from mhsh.data.pretraining.packing import Rows, pack
from mhsh.data.pretraining.sentences import sentences
from mhsh.data.pretraining.token_documents import tokenise
from mhsh.data.seeds import TRAIN_PAIRS, VALIDATION_PAIRS
from mhsh.data.splits import TRAIN
from mhsh.data.tokenizers.wordpiece import Tokenizer
from mhsh.errors import UserError


def prepared_with(model: ModelConfig, data: DataConfig) -> dict[str, Any]:
    """What prepared rows must have been prepared with to be those of a config."""
    return {
        "model.objective": model.objective,
        "model.next_sentence": model.next_sentence,
        "data.tokenizer": data.tokenizer,
        "data.lowercase": data.lowercase,
        "data.sequence_length": data.sequence_length,
    }


def encode_documents(
    documents: Sequence[str], tokenizer: Tokenizer, model: ModelConfig, data: DataConfig, split: str, number: int
) -> tuple[Rows, dict[str, Any]]:
    """The rows of a chunk of documents, and sums that those of other chunks are added to.

    Random sentences come from other documents of the same chunk, drawn by (data.seed, split,
    number).

    Args:
      number: of the chunk in its split; a corpus in memory is chunk 0.

    Returns:
      rows, as `rows.pack` gives them, and documents, empty_documents: those with tokens, and those
        of which the tokenizer left nothing; sentences (clm: lines), cut_sentences: those with
        tokens, and those of them too long for a row, cut into pieces; rows, places: R and the R T
        places of its rows; tokens: in rows, specials among them, padding not; dropped_tokens: at
        the end of a clm stream, too few for a row; token_counts: how often each id occurs in the
        rows, or (clm) among their targets.
    """
    token_documents = tokenise(documents, tokenizer, _lines if model.objective == "clm" else sentences)
    purpose = TRAIN_PAIRS if split == TRAIN else VALIDATION_PAIRS
    packing = pack(token_documents, tokenizer, model, data, np.random.default_rng((data.seed, purpose, number)))
    tokens = packing.rows["tokens"]
    num_places = len(tokens) * data.sequence_length
    counted = tokens[:, 1:] if model.objective == "clm" else tokens
    return packing.rows, {
        "documents": token_documents.num_documents,
        "empty_documents": len(documents) - token_documents.num_documents,
        "sentences": len(token_documents.sentence_bounds) - 1,
        "cut_sentences": packing.cut_sentences,
        "rows": len(tokens),
        "places": num_places,
        "tokens": num_places if model.objective == "clm" else int(packing.rows["ends"][:, 1].sum()),
        "dropped_tokens": packing.dropped_tokens,
        "token_counts": np.bincount(counted.reshape(-1), minlength=tokenizer.vocab_size),
    }


def split_counts(sums: Mapping[str, Any], tokenizer: Tokenizer, data: DataConfig, split: str) -> dict[str, Any]:
    """The sums of a split as plain numbers, and what follows from them.

    Added are padding_fraction, of the places; unknown_fraction, of the tokens of the text those
    that are [UNK]; used_vocabulary, of the vocabulary without its specials the share that occurs.

    Raises:
      UserError: there are no rows.
    """
    if not sums["rows"]:
        raise UserError(
            f"the {sums['documents']} documents for {split} of data.source = {data.source!r} fill no row of data.sequence_length = "
            f"{data.sequence_length} tokens; shorten the rows, give more text, or change data.validation_fraction"
        )
    plain = {name: int(value) for name, value in sums.items() if name not in ("places", "token_counts")}
    ordinary, unknown = sums["token_counts"][~tokenizer.is_special], int(sums["token_counts"][tokenizer.unk_id])
    return plain | {
        "padding_fraction": 1 - plain["tokens"] / int(sums["places"]),
        "unknown_fraction": unknown / max(1, unknown + int(ordinary.sum())),
        "used_vocabulary": float((ordinary > 0).mean()),
    }


def rows_entropy(sums: Mapping[str, Any], tokenizer: Tokenizer, model: ModelConfig) -> float:
    """The unigram entropy of what rows ask for: every target of clm, every token of mlm that is not
    special.
    """
    counts = sums["token_counts"]
    return entropy_of_counts(counts if model.objective == "clm" else counts[~tokenizer.is_special])


def _lines(document: str) -> list[str]:
    """The lines with their ends: a causal model reads the text as it is, and many short texts
    spread over the cores.
    """
    *lines, last = document.split("\n")
    return [line + "\n" for line in lines] + ([last] if last else [])
