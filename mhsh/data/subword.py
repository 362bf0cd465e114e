"""Byte-level BPE, trained or loaded: one vocabulary for both languages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tokenizers
from etils import epath
from jaxtyping import Int32, Integer
from tokenizers import decoders, models, pre_tokenizers, trainers

from mhsh.data.text_files import read_vocabulary
from mhsh.errors import UserError
from mhsh.storage.files import write_atomically

PAD, UNK, BOS, EOS = SPECIALS = ("[PAD]", "[UNK]", "[BOS]", "[EOS]")
PAD_ID, UNK_ID, BOS_ID, EOS_ID = range(4)

# A printable character for each of the 256 bytes, so that nothing is unknown.
_ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


class SubwordTokenizer:
    """Maps text to ids of a vocabulary of V pieces.

    The first four are special: padding, unknown (never used), begin and end. The others are strings
    of bytes inside words, and each word includes the space before it, also at the start of a text.
    So any text without white space at its ends is decoded exactly.
    """

    def __init__(self, vocab: Mapping[str, int], merges: Sequence[Sequence[str]]) -> None:
        """`merges` are pairs of pieces, the most frequent first."""
        # Special tokens are not registered: the library would then find "[EOS]" inside a text.
        self._encoder = tokenizers.Tokenizer(models.BPE(vocab=dict(vocab), merges=[(left, right) for left, right in merges]))
        self._encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
        self._encoder.decoder = decoders.ByteLevel()

    @property
    def vocab_size(self) -> int:
        """V, the number of pieces; ids run from 0 to V - 1."""
        return self._encoder.get_vocab_size()

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hex, over everything that decides how text becomes ids."""
        return hashlib.sha256(self._encoder.to_str().encode("utf-8")).hexdigest()

    def encode_batch(self, texts: Sequence[str]) -> list[Int32[np.ndarray, " n"]]:
        """The ids of each text, without special tokens, on all cores as the library decides."""
        encodings = self._encoder.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def decode(self, ids: Iterable[int] | Integer[np.ndarray, " n"]) -> str:
        """The text of ids without special tokens; invalid UTF-8 becomes U+FFFD."""
        pieces = [int(number) for number in ids if number >= len(SPECIALS)]
        return self._encoder.decode(pieces, skip_special_tokens=False).removeprefix(" ")

    def save(self, path: epath.PathLike) -> None:
        """Writes a tokenizer.json, which `load_subword` and the library `tokenizers` read."""
        write_atomically(path, self._encoder.to_str(pretty=True) + "\n")


def train_subword(texts: Iterable[str], vocab_size: int) -> SubwordTokenizer:
    """A vocabulary of at most `vocab_size` pieces; equal texts give equal ones in every process.

    BPE: Sennrich et al., arXiv 1508.07909, over bytes as in GPT-2. Raises UserError where
    `vocab_size` has no room for more than the special tokens and the bytes.
    """
    least = len(SPECIALS) + len(_ALPHABET) + 1
    if vocab_size < least:
        raise UserError(
            f"model.vocab_size = {vocab_size} is too small for a translation vocabulary: specials and bytes alone take "
            f"{least - 1} tokens; set model.vocab_size to {least} or more"
        )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,  # pairs that occur only once are not merged
        special_tokens=[*SPECIALS],
        initial_alphabet=_ALPHABET,
        show_progress=False,
    )
    encoder = tokenizers.Tokenizer(models.BPE())
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
    encoder.train_from_iterator(texts, trainer)
    learnt = json.loads(encoder.to_str())["model"]
    return SubwordTokenizer(learnt["vocab"], learnt["merges"])


def load_subword(path: epath.PathLike) -> SubwordTokenizer:
    """The tokenizer that `save` wrote. Raises UserError where the file is missing, damaged, or has
    another kind of vocabulary.
    """
    text = read_vocabulary(path, "tokenizer.json")
    try:
        model = json.loads(text)["model"]
        if model["type"] != "BPE":
            raise UserError(f"{path} is a {model['type']} vocabulary, not BPE; name one that mhsh has made for translation")
        pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
        tokenizer = SubwordTokenizer(model["vocab"], model["merges"])
    except UserError:
        raise
    except Exception as error:  # the library raises bare exceptions
        raise UserError(
            f"{path} is damaged or not a tokenizer.json ({type(error).__name__}: {error}); put it back from a copy"
        ) from error
    if tuple(pieces[: len(SPECIALS)]) != SPECIALS:
        raise UserError(f"{path} begins with {pieces[:4]}, not {' '.join(SPECIALS)}; it is not a translation vocabulary of mhsh")
    if len(set(_ALPHABET) - set(pieces)):
        raise UserError(f"{path} lacks some of the 256 bytes; it is not a translation vocabulary of mhsh")
    return tokenizer
