"""Prepared pairs are those that training makes of the source itself, whatever the shards."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from mhsh.data.load import load_corpus
from mhsh.data.shards import StoredTable
from mhsh.data.tokenizers.subword import load_subword, train_subword
from mhsh.data.translation.task import TranslationTask
from mhsh.errors import UserError
from tests.data.preparing import invented, prepared, translation_config, tree, with_rows, write_pairs


@pytest.fixture
def text(tmp_path):
    return write_pairs(tmp_path, "text", invented(700, seed=1))


@pytest.mark.parametrize("layout", ["packed", "bucketed"])
@pytest.mark.parametrize("kind", ["numbers", "held out", "validation source"])
def test_prepared_rows_are_those_of_the_source(tmp_path, text, layout, kind):
    fields: dict[str, Any] = {"numbers": {}, "held out": dict(source=text), "validation source": dict(source=text)}[kind]
    if kind == "validation source":
        # Some of its pairs are in the training text too.
        fields["validation_source"] = write_pairs(tmp_path, "valid", invented(700, seed=1)[:20] + invented(50, seed=2))
    config = translation_config(layout=layout, **fields)
    summary, _ = prepared(config, tmp_path / "out")
    here = TranslationTask(config.model, config.data).load()
    there = TranslationTask(config.model, with_rows(config, tmp_path / "out").data).load()
    assert there.unigram_entropy == here.unigram_entropy
    assert there.tokenizer.fingerprint == here.tokenizer.fingerprint
    assert summary == there.counts == here.counts
    if kind == "validation source":
        assert summary["in_both_splits"] > 0
    for split in ("train", "validation"):
        a, b = getattr(here, split), getattr(there, split)
        assert [group for group in a.groups if group.count] == b.groups
        examples = [table.take(np.arange(len(a)), config.data.sequence_length) for table in (a, b)]
        assert set(examples[0]) == set(examples[1])
        for name, values in examples[0].items():
            np.testing.assert_array_equal(values, examples[1][name])
    for step in (0, 7):
        for (name, a), b in zip(sorted(here.train_steps(4)[step].items()), sorted(there.train_steps(4)[step].items()), strict=True):
            assert name == b[0]
            np.testing.assert_array_equal(a, b[1])


def test_rows_of_another_config_or_run_are_refused(tmp_path, text):
    prepared(translation_config(source=text), tmp_path / "out")
    for change, complaint in (
        (dict(layout="bucketed"), r"was prepared with data\.layout = 'packed', not 'bucketed'; set it to that"),
        (dict(sequence_length=32), r"was prepared with data\.sequence_length = 64, not 32"),
        (dict(vocab_size=300), r"400 tokens, more than model\.vocab_size = 300"),
    ):
        with pytest.raises(UserError, match=complaint):
            load_corpus(with_rows(translation_config(**change), tmp_path / "out"), None)
    config = with_rows(translation_config(), tmp_path / "out")
    named = replace(config, data=replace(config.data, validation_source="numbers"))
    with pytest.raises(UserError, match=r"data\.validation_source = 'numbers', but .* has its own"):
        load_corpus(named, None)
    # A run that goes on brings its own vocabulary, which must be the folder's.
    corpus = load_corpus(config, None)
    corpus.save_vocab(tmp_path)
    assert load_corpus(config, tmp_path / "tokenizer.json").fingerprint == corpus.fingerprint
    train_subword("bpe", ["some other words"], 300).save(tmp_path / "tokenizer.json")
    with pytest.raises(UserError, match=r"tokenizer\.json is not the vocabulary of the run"):
        load_corpus(config, tmp_path / "tokenizer.json")


def pairs_in(rows: Any) -> Counter[tuple[tuple[int, ...], tuple[int, ...]]]:
    found: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    examples = rows.take(np.arange(len(rows)), 64)
    for index in range(len(rows)):
        row = {name: values[index] for name, values in examples.items()}
        for number in range(1, int(row["inputs_segmentation"].max()) + 1):
            source, target = (tuple(row[side][row[f"{side}_segmentation"] == number].tolist()) for side in ("inputs", "targets"))
            found[source, target] += 1
    return found


@pytest.mark.parametrize("layout", ["packed", "bucketed"])
def test_many_shards_hold_the_pairs_of_one(tmp_path, text, layout):
    config = translation_config(source=text, layout=layout)
    prepared(config, tmp_path / "one")
    prepared(config, tmp_path / "many", per_shard=20)
    for split in ("train", "validation"):
        one, many = StoredTable(tmp_path / "one" / split), StoredTable(tmp_path / "many" / split)
        assert len(one.shards) == 1 and len(many.shards) > 1
        assert pairs_in(one) == pairs_in(many)
        assert one.meta["unigram_entropy"] == many.meta["unigram_entropy"]
        for name in ("pairs", "too_long", "unlike", "source_tokens", "target_tokens"):
            assert one.meta["counts"][split][name] == many.meta["counts"][split][name]


def test_a_vocabulary_can_be_given(tmp_path, text):
    path = tmp_path / "tokenizer.json"
    train_subword("bpe", [text for pair in invented(99, seed=4) for text in pair], 400).save(path)
    config = translation_config(source=text, vocab_path=str(path))
    prepared(config, tmp_path / "text")
    assert (tmp_path / "text" / "tokenizer.json").read_bytes() == path.read_bytes()
    # Its content counts, not its name.
    shutil.copy(path, tmp_path / "copy.json")
    _, said = prepared(translation_config(source=text, vocab_path=str(tmp_path / "copy.json")), tmp_path / "text")
    assert "is finished" in said[0]
    with pytest.raises(UserError, match=r"more than model.vocab_size = 300"):
        prepared(translation_config(300, source=text, vocab_path=str(path)), tmp_path / "small")
    with pytest.raises(UserError, match=r"is a bpe vocabulary, but data.tokenizer = 'unigram'"):
        prepared(translation_config(source=text, vocab_path=str(path), tokenizer="unigram"), tmp_path / "unigram")


def test_unigram_vocabularies_are_prepared_too(tmp_path, text):
    for name in "ab":
        prepared(translation_config(source=text, tokenizer="unigram"), tmp_path / name, per_shard=300)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert load_subword(tmp_path / "a" / "tokenizer.json").kind == "unigram"


def test_sources_that_will_not_do(tmp_path):
    source = write_pairs(tmp_path, "long", [("a " * 90, "b " * 90)] * 20)
    with pytest.raises(UserError, match=r"leaves 0 pairs for validation, which needs 1 \(20 read, 0 empty, 19 duplicates"):
        prepared(translation_config(source=source), tmp_path / "out")
    with pytest.raises(UserError, match=r"leaves no pair for train: 1 are longer than data.sequence_length = 64"):
        prepared(translation_config(source=source, validation_source="numbers:100"), tmp_path / "long")
