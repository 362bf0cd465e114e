"""Byte-level BPE or unigram, trained or loaded: one vocabulary for both languages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tokenizers
from etils import epath
from jaxtyping import Int32, Integer
from tokenizers import decoders, models, pre_tokenizers, trainers

from mhsh.config.schema import TRANSLATION_TOKENIZERS
from mhsh.data.text_files import read_vocabulary
from mhsh.errors import UserError
from mhsh.files import write_atomically

PAD, UNK, BOS, EOS = SPECIALS = ("[PAD]", "[UNK]", "[BOS]", "[EOS]")
PAD_ID, UNK_ID, BOS_ID, EOS_ID = range(4)

# A printable character for each of the 256 bytes, so that nothing is unknown.
_ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
# BPE does not merge pairs that occur only once.
_LEAST_FREQUENCY = 2
# The difference that the unigram trainer sets between scores of characters it never saw.
_UNSEEN_STEP = 1e-4


class SubwordTokenizer:
    """Maps text to ids of a vocabulary of V pieces.

    The first four are special: padding, unknown (never used), begin and end. The others are strings
    of bytes inside words, and each word includes the space before it, also at the start of a text.
    So any text without white space at its ends is decoded exactly.
    """

    def __init__(self, model: models.BPE | models.Unigram) -> None:
        # Special tokens are not registered: the library would then find "[EOS]" inside a text.
        self._encoder = tokenizers.Tokenizer(model)
        self._encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
        self._encoder.decoder = decoders.ByteLevel()
        self.kind: str = "bpe" if isinstance(model, models.BPE) else "unigram"

    @property
    def vocab_size(self) -> int:
        """V, the number of pieces; ids run from 0 to V - 1."""
        return self._encoder.get_vocab_size()

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hex, over everything that decides how text becomes ids."""
        return hashlib.sha256(self._encoder.to_str().encode("utf-8")).hexdigest()

    def encode_batch(self, texts: Sequence[str]) -> list[Int32[np.ndarray, " n"]]:
        """The ids of each text, without special tokens.

        Computed on all cores unless TOKENIZERS_PARALLELISM=false.
        """
        encodings = self._encoder.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def decode(self, ids: Iterable[int] | Integer[np.ndarray, " n"]) -> str:
        """The text of ids without special tokens; invalid UTF-8 becomes U+FFFD."""
        pieces = [int(number) for number in ids if number >= len(SPECIALS)]
        return self._encoder.decode(pieces, skip_special_tokens=False).removeprefix(" ")

    def save(self, path: epath.PathLike) -> None:
        """Writes a tokenizer.json, which `load_subword` and the library `tokenizers` read."""
        write_atomically(path, self._encoder.to_str(pretty=True) + "\n")


def train_subword(kind: str, texts: Iterable[str], vocab_size: int) -> SubwordTokenizer:
    """Trains a vocabulary of at most `vocab_size` pieces on the sentences of both languages.

    BPE: Sennrich et al., arXiv 1508.07909, over bytes as in GPT-2. Unigram: Kudo, arXiv 1804.10959.
    The same texts give the same vocabulary in every process. The unigram trainer of `tokenizers`
    sums in a random order, so the last bits of its scores differ, and so do the scores of
    characters it never saw: scores are rounded here, and those characters share one score.

    Raises:
      UserError: `vocab_size` has no room for more than the special tokens and the bytes.
    """
    least = len(SPECIALS) + len(_ALPHABET) + 1
    if vocab_size < least:
        raise UserError(
            f"model.vocab_size = {vocab_size} is too small for a translation vocabulary: specials and bytes alone take "
            f"{least - 1} tokens; set model.vocab_size to {least} or more"
        )
    learner: models.BPE | models.Unigram
    options: dict[str, Any] = dict(
        vocab_size=vocab_size, special_tokens=[*SPECIALS], initial_alphabet=_ALPHABET, show_progress=False
    )
    if kind == "bpe":
        learner, trainer = models.BPE(), trainers.BpeTrainer(min_frequency=_LEAST_FREQUENCY, **options)
    else:
        learner, trainer = models.Unigram(), trainers.UnigramTrainer(unk_token=UNK, **options)
    encoder = tokenizers.Tokenizer(learner)
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
    encoder.train_from_iterator(texts, trainer)
    learnt = json.loads(encoder.to_str())["model"]
    if kind == "bpe":
        return SubwordTokenizer(models.BPE(vocab=learnt["vocab"], merges=[tuple(merge) for merge in learnt["merges"]]))
    return SubwordTokenizer(models.Unigram(vocab=_settled(learnt["vocab"]), unk_id=UNK_ID))


def load_subword(path: epath.PathLike) -> SubwordTokenizer:
    """The tokenizer that `SubwordTokenizer.save` wrote.

    Raises:
      UserError: the file is missing or damaged, or has another kind of vocabulary.
    """
    text = read_vocabulary(path, "tokenizer.json")
    try:
        model = json.loads(text)["model"]
        kind, vocab = str(model["type"]).lower(), model["vocab"]
        if kind == "bpe":
            pieces = sorted(vocab, key=vocab.__getitem__)
            tokenizer = SubwordTokenizer(models.BPE(vocab=vocab, merges=[tuple(merge) for merge in model["merges"]]))
        elif kind == "unigram":
            pieces = [piece for piece, _ in vocab]
            tokenizer = SubwordTokenizer(models.Unigram(vocab=[(piece, score) for piece, score in vocab], unk_id=UNK_ID))
        else:
            raise UserError(f"{path} is a {kind} vocabulary; allowed: {', '.join(TRANSLATION_TOKENIZERS)}")
    except UserError:
        raise
    except Exception as error:  # the library raises bare exceptions
        raise UserError(
            f"{path} is damaged or no tokenizer.json ({type(error).__name__}: {error}); put it back from a copy"
        ) from error
    if tuple(pieces[: len(SPECIALS)]) != SPECIALS:
        raise UserError(f"{path} begins with {pieces[:4]}, not with {' '.join(SPECIALS)}; it is no translation vocabulary of mhsh")
    if len(set(_ALPHABET) - set(pieces)):
        raise UserError(f"{path} lacks some of the 256 bytes; it is no translation vocabulary of mhsh")
    return tokenizer


def _settled(vocab: Sequence[Sequence[Any]]) -> list[tuple[str, float]]:
    """A unigram vocabulary with rounded scores: special tokens, then likelier pieces first."""
    scores = {piece: round(score, 4) for piece, score in vocab if piece not in SPECIALS}
    lowest = min(scores.values())
    for character in _ALPHABET:
        if scores[character] < lowest + _UNSEEN_STEP * (len(_ALPHABET) + 1):
            scores[character] = lowest
    ordered = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    return [*((special, 0.0) for special in SPECIALS), *ordered]
