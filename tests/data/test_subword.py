"""Exact round trips, the same vocabulary in every process, and what is said of files that hold
none.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mhsh.data.pairs import clean_text
from mhsh.data.subword import BOS_ID, EOS_ID, PAD_ID, SPECIALS, UNK_ID, SubwordTokenizer, load_subword, train_subword
from mhsh.data.synthetic import training_pairs
from mhsh.errors import UserError
from tests.data.conftest import printed

TEXTS = [text for pair in training_pairs(1500) for text in pair]


@pytest.fixture(scope="module")
def tokenizer() -> SubwordTokenizer:
    return train_subword(TEXTS, 400)


def decoded(tokenizer: SubwordTokenizer, text: str) -> str:
    (ids,) = tokenizer.encode_batch([text])
    assert ids.dtype == np.int32
    assert not np.isin(ids, [PAD_ID, UNK_ID, BOS_ID, EOS_ID]).any()
    return tokenizer.decode(ids)


@example("")
@example("Grüße aus Köln, „schön“ \u2014 nicht wahr?")
@example("it's 5 o'clock! don't")  # "!" is the first piece after the specials
@example("\U0001f600 \U0001f469\u200d\U0001f680 ok")
@example("[EOS] [PAD][UNK] <s>")
@example("日本語 и русский Ġ ▁ ##a")
@example("x" * 300)
@given(text=st.text(max_size=40).map(clean_text))
def test_any_clean_text_round_trips(tokenizer: SubwordTokenizer, text: str) -> None:
    assert decoded(tokenizer, text) == text


def test_pieces_are_learnt_and_a_word_is_one_thing_wherever_it_stands(tokenizer: SubwordTokenizer) -> None:
    assert tokenizer.vocab_size == 400
    first, later = tokenizer.encode_batch(["thousand", "one thousand"])
    assert len(first) < len("thousand")
    np.testing.assert_array_equal(later[-len(first) :], first)
    tokens = sum(map(len, tokenizer.encode_batch(TEXTS)))
    assert tokens < 0.4 * sum(map(len, TEXTS))


def test_specials_are_the_first_four_and_are_not_shown(tokenizer: SubwordTokenizer, tmp_path: Path) -> None:
    (ids,) = tokenizer.encode_batch(["one"])
    assert tokenizer.decode([BOS_ID, *ids.tolist(), EOS_ID, PAD_ID, PAD_ID]) == "one"
    tokenizer.save(tmp_path / "t.json")
    vocab = json.loads((tmp_path / "t.json").read_bytes())["model"]["vocab"]
    assert tuple(sorted(vocab, key=vocab.get)[:4]) == SPECIALS == ("[PAD]", "[UNK]", "[BOS]", "[EOS]")


def test_saved_and_loaded_it_is_the_same(tokenizer: SubwordTokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    loaded = load_subword(path)
    assert loaded.fingerprint == tokenizer.fingerprint
    sample = [*TEXTS[:200], "Ärger \U0001f600"]
    for mine, other in zip(tokenizer.encode_batch(sample), loaded.encode_batch(sample), strict=True):
        np.testing.assert_array_equal(mine, other)
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_the_same_vocabulary_in_every_process(tokenizer: SubwordTokenizer) -> None:
    code = (
        "from mhsh.data.synthetic import training_pairs\n"
        "from mhsh.data.subword import train_subword\n"
        "texts = [text for pair in training_pairs(1500) for text in pair]\n"
        "print(train_subword(texts, 400).fingerprint)\n"
    )
    for seed, parallel in (("1", "true"), ("2", "false")):
        assert printed(code, PYTHONHASHSEED=seed, TOKENIZERS_PARALLELISM=parallel).strip() == tokenizer.fingerprint


def test_little_text_gives_a_small_vocabulary() -> None:
    tokenizer = train_subword(["ein Haus", "a house"], 1000)
    assert 260 <= tokenizer.vocab_size < 300
    assert decoded(tokenizer, "zwei Häuser") == "zwei Häuser"
    with pytest.raises(UserError, match=r"model\.vocab_size = 260 is too small .* take 260 tokens; set model\.vocab_size to 261"):
        train_subword(["ein Haus"], 260)


def test_files_that_are_no_vocabulary(tokenizer: SubwordTokenizer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the vocabulary .*gone\.json does not exist"):
        load_subword(tmp_path / "gone.json")
    path = tmp_path / "t.json"
    for content in (b"", b"{}", b"\xff", b"[1]", b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["b", "c"]]}}'):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"t\.json (is damaged or not a tokenizer\.json|line 1 is not UTF-8)"):
            load_subword(path)
    tokenizer.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"t\.json is damaged"):
        load_subword(path)
    path.write_text(json.dumps({"model": {"type": "WordPiece", "vocab": {}}}))
    with pytest.raises(UserError, match=r"is a WordPiece vocabulary, not BPE"):
        load_subword(path)
    path.write_bytes(whole.replace(b"[EOS]", b"</s>"))
    with pytest.raises(UserError, match=r"begins with \['\[PAD\]', '\[UNK\]', '\[BOS\]', '</s>'\], not \[PAD\]"):
        load_subword(path)
