"""The vocabulary of pre-training that a config asks for: loaded from a file, trained on its text,
or the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from etils import epath

from mhsh.config.schema import DataConfig, ModelConfig
from mhsh.data.tokenizers.wordpiece import ByteTokenizer, Tokenizer, load_wordpiece, read_vocab, train_wordpiece
from mhsh.errors import UserError


def new_vocabulary(texts: Iterable[str], model: ModelConfig, data: DataConfig) -> Tokenizer:
    """The vocabulary of data.vocab_path, or else the bytes or a WordPiece vocabulary trained on
    `texts`, as data.tokenizer says.

    Args:
      texts: of the training split alone; gone through twice where they are trained on, else not at
        all.

    Raises:
      UserError: data.vocab_path will not do, or model.vocab_size is too small.
    """
    if data.vocab_path:
        if data.tokenizer == "bytes":
            raise UserError(f"data.vocab_path = {data.vocab_path!r} is only for data.tokenizer = 'wordpiece'; empty it for 'bytes'")
        return read_vocabulary(epath.Path(data.vocab_path).expanduser(), model, data)
    if data.tokenizer == "bytes":
        return _fitting(ByteTokenizer(), "data.tokenizer = 'bytes'", model)
    return train_wordpiece(texts, model.vocab_size, data.lowercase)


def read_vocabulary(path: epath.PathLike, model: ModelConfig, data: DataConfig) -> Tokenizer:
    """The vocabulary of a vocab.txt. Raises UserError where it will not do for data.tokenizer or
    model.vocab_size.
    """
    if data.tokenizer == "wordpiece":
        return _fitting(load_wordpiece(path, data.lowercase), f"the vocabulary {path}", model)
    tokenizer = ByteTokenizer()
    if tuple(read_vocab(path)) != tokenizer.vocab:
        raise UserError(f"{path} is not the vocabulary of data.tokenizer = 'bytes'; put it back from a copy")
    return _fitting(tokenizer, "data.tokenizer = 'bytes'", model)


def _fitting(tokenizer: Tokenizer, whose: str, model: ModelConfig) -> Tokenizer:
    if tokenizer.vocab_size > model.vocab_size:
        raise UserError(
            f"{whose} has {tokenizer.vocab_size} tokens, more than model.vocab_size = {model.vocab_size}; set "
            f"model.vocab_size to {tokenizer.vocab_size} or more"
        )
    return tokenizer
