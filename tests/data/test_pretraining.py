"""Splits that share no document and depend on content and seed alone, fingerprints, entropy,
and text that will not do.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from mhsh.data.corpus import Corpus
from mhsh.data.load import load_corpus
from mhsh.data.pretraining import PretrainingTask
from mhsh.data.tables import ExampleTable, format_unknown
from mhsh.data.wordpiece import SPECIALS, Tokenizer
from mhsh.errors import UserError
from tests.data.preparing import CLM, LAYOUTS, pretraining_config


def load(config: Any, saved_vocab: Path | None = None) -> Corpus[Tokenizer]:
    return PretrainingTask(config.model, config.data).load(saved_vocab)


def documents_in(corpus: Corpus[Tokenizer], table: ExampleTable) -> set[str]:
    """The documents whose names (see `english`) appear whole in the rows."""
    texts = [corpus.tokenizer.decode(row.tolist()) for row in table.all()["tokens"]]
    return {name for text in texts for name in re.findall(r"doc\d+(?= )", text)}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_validation_shares_nothing_with_training(english_source: str, english: list[str], layout: str) -> None:
    config = pretraining_config(**LAYOUTS[layout] | dict(source=english_source, tokenizer="bytes", sequence_length=100))
    corpus = load(config)
    train, validation = documents_in(corpus, corpus.train), documents_in(corpus, corpus.validation)
    assert len(validation) == corpus.counts["validation"]["documents"] > 2
    assert len(train) == corpus.counts["train"]["documents"]
    assert train.isdisjoint(validation)
    assert train | validation == {f"doc{number}" for number in range(len(english))}
    rows = [{tuple(row) for row in table.all()["tokens"].tolist()} for table in (corpus.train, corpus.validation)]
    assert rows[0].isdisjoint(rows[1])


def parts(documents: list[str], config: Any) -> dict[str, list[str]]:
    task = PretrainingTask(config.model, config.data)
    found: dict[str, list[str]] = {"train": [], "validation": []}
    try:
        for split, (document,) in task.split([((text,) for text in documents)], dict.fromkeys(task.count_names, 0)):
            found[split].append(document)
    except UserError:  # at the end, where a side has too few
        pass
    return found


def test_the_split_depends_on_content_and_seed_alone(english: list[str]) -> None:
    config = pretraining_config()
    found = parts(english, config)
    assert [document for document in english if document in found["train"]] == found["train"]
    turned = parts(english[::-1], config)
    assert {split: set(texts) for split, texts in turned.items()} == {split: set(texts) for split, texts in found.items()}
    # A document alone is on the side it is on among others.
    for split, texts in found.items():
        assert all(parts([text], config)[split] == [text] for text in texts)
    assert parts(english, replace(config, data=replace(config.data, seed=1))) != found


@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.25, 0.9])
def test_the_share_held_out(fraction: float) -> None:
    count = 20_000
    found = parts([f"document {number}" for number in range(count)], pretraining_config(validation_fraction=fraction))
    # Fair coins; five standard deviations.
    assert abs(len(found["validation"]) / count - fraction) <= 5 * np.sqrt(fraction * (1 - fraction) / count)


def test_tokenizer_is_trained_on_training_documents_only(english: list[str], tmp_path: Path) -> None:
    # Characters of one document alone: in the vocabulary just when that document is trained on.
    marked = [*english, "ωψχ " * 50]
    (tmp_path / "t.txt").write_text("\n\n".join(marked), encoding="utf-8")
    sides = {}
    for seed in range(12):
        corpus = load(pretraining_config(source=f"text:{tmp_path}/t.txt", seed=seed))
        in_vocab = "ω" in corpus.tokenizer.vocab
        unknown = [corpus.counts[split]["unknown_fraction"] > 0 for split in ("train", "validation")]
        sides[in_vocab] = unknown
        assert not unknown[0]
        assert unknown[1] != in_vocab
    assert set(sides) == {True, False}


def test_equal_arguments_equal_corpora(english_source: str) -> None:
    config = pretraining_config(source=english_source)
    corpus = load(config)
    assert re.fullmatch("[0-9a-f]{64}", corpus.fingerprint)
    assert load(config).fingerprint == corpus.fingerprint
    fields = [("seed", 1), ("sequence_length", 50), ("validation_fraction", 0.3), ("lowercase", False), ("tokenizer", "bytes")]
    others = [load(pretraining_config(**{"source": english_source, f"{name}": value})) for name, value in fields]
    assert len({corpus.fingerprint, *(other.fingerprint for other in others)}) == 6


def test_saved_vocabulary_wins(english_source: str, english: list[str], tmp_path: Path) -> None:
    config = pretraining_config(source=english_source)
    trained = load(config)
    trained.tokenizer.save(tmp_path / "run.txt")
    words = sorted({word for text in english for word in re.findall(r"\w+|\.", text.lower())})
    (tmp_path / "words.txt").write_text("".join(token + "\n" for token in [*SPECIALS, *words]))
    other = pretraining_config(source=english_source, vocab_path=str(tmp_path / "words.txt"))
    assert load(other).tokenizer.vocab == (*SPECIALS, *words)
    restored = load(other, saved_vocab=tmp_path / "run.txt")
    assert restored.tokenizer.vocab == trained.tokenizer.vocab
    assert restored.fingerprint == trained.fingerprint
    trained.save_vocab(tmp_path)
    assert load_corpus(other, tmp_path / "vocab.txt").fingerprint == trained.fingerprint
    with pytest.raises(UserError, match=r"the run's vocabulary .*gone\.txt is missing"):
        load(config, saved_vocab=tmp_path / "gone.txt")
    with pytest.raises(UserError, match=r"run\.txt is not the vocabulary of data\.tokenizer = 'bytes'"):
        load(pretraining_config(source=english_source, tokenizer="bytes"), saved_vocab=tmp_path / "run.txt")
    with pytest.raises(UserError, match=r"'bytes' has 261 tokens, more than model\.vocab_size = 260; set .* to 261 or more"):
        load(pretraining_config(source=english_source, tokenizer="bytes", vocab_size=260))


@pytest.mark.parametrize(
    ("fraction", "next_sentence", "complaint"),
    [
        (0.0, False, r"leaves 0 documents for validation, which needs 1 \(61 read, 0 empty, 1 duplicates, .*_fraction = 0\.0\)"),
        (0.999999, True, r"leaves 0 documents for train, which needs 2"),
        (0.02, True, r"leaves (0 documents|1 document) for validation, which needs 2"),
    ],
)
def test_too_few_documents_on_a_side(
    english: list[str], tmp_path: Path, fraction: float, next_sentence: bool, complaint: str
) -> None:
    (tmp_path / "t.txt").write_text("\n\n".join([*english, english[0]]))
    fields = dict(source=f"text:{tmp_path}/t.txt", validation_fraction=fraction)
    with pytest.raises(UserError, match=complaint):
        load(pretraining_config(**fields, next_sentence=next_sentence))


def test_rows_for_one_batch_at_least(english_source: str) -> None:
    corpus = load(pretraining_config(source=english_source))
    num_rows = len(corpus.train)
    corpus.check_batch(num_rows)
    with pytest.raises(UserError, match=rf"train\.batch_size = {num_rows + 1} is more than the {num_rows} training rows"):
        corpus.check_batch(num_rows + 1)


def test_unigram_entropy_counts_what_is_predicted(tmp_path: Path) -> None:
    # A text of one letter: a masked model has one thing to predict, a causal one also the [SEP]
    # between documents.
    (tmp_path / "t.txt").write_text("\n\n".join("a" * length for length in range(9, 21)))
    fields = dict(source=f"text:{tmp_path}/t.txt", tokenizer="bytes", sequence_length=5, max_predictions=1)
    fields["validation_fraction"] = 0.5
    assert load(pretraining_config(**fields)).unigram_entropy == 0
    causal = load(pretraining_config(**{**CLM, **fields}))
    share = (causal.train.all()["tokens"][:, 1:] == causal.tokenizer.sep_id).mean()
    assert 0 < share < 0.5
    assert causal.unigram_entropy == pytest.approx(-(share * math.log(share) + (1 - share) * math.log(1 - share)))


def test_summary_counts(english_source: str) -> None:
    corpus = load(pretraining_config(source=english_source, sequence_length=20, lowercase=False))
    tokenizer, summary = corpus.tokenizer, corpus.summary()
    assert summary["vocab_size"] == tokenizer.vocab_size == 400
    assert (summary["read"], summary["empty"], summary["duplicates"]) == (60, 0, 0)
    for split, table in (("train", corpus.train), ("validation", corpus.validation)):
        tokens = table.all()["tokens"]
        real = tokens != tokenizer.pad_id
        counts = summary[split]
        assert counts["rows"] == len(table) == len(real)
        assert counts["tokens"] == real.sum()
        assert counts["padding_fraction"] == pytest.approx(1 - real.mean())
        assert 0 < counts["cut_sentences"] < counts["sentences"]
        assert counts["empty_documents"] == 0
        text = tokens[(tokens >= len(SPECIALS)) | (tokens == tokenizer.unk_id)]
        assert counts["unknown_fraction"] == pytest.approx((text == tokenizer.unk_id).mean())
        used = set(text.tolist()) - {tokenizer.unk_id}
        assert counts["used_vocabulary"] == pytest.approx(len(used) / (tokenizer.vocab_size - len(SPECIALS)))
    assert 0.5 < summary["train"]["used_vocabulary"] <= 1


@pytest.mark.parametrize(("letters", "share"), [(0, 0.0), (120, 0.4), (2000, 0.9)])
def test_words_that_no_piece_covers_are_counted_by_characters(tmp_path: Path, letters: int, share: float) -> None:
    """By tokens they are a few in a hundred, whatever their length."""
    words = "the river ran past the old mill and the children watched it go. They went home by the road over the hill. " * 2
    lines = [f"{words}Number {number}. {'acgt' * (letters // 4)}" for number in range(60)]
    (tmp_path / "t.txt").write_text("\n\n".join(lines))
    config = pretraining_config(source=f"text:{tmp_path}/t.txt", validation_fraction=0.2, vocab_size=300, sequence_length=64)
    if share > 0.5:
        with pytest.raises(UserError, match=r"^9\d% of the characters of data\.source = .* take --config\.data\.tokenizer=bytes, "):
            load(config)
        load(pretraining_config(source=config.data.source, tokenizer="bytes", validation_fraction=0.2, sequence_length=64))
        return
    corpus = load(config)
    train = corpus.counts["train"]
    assert train["unknown_character_fraction"] == pytest.approx(share, abs=0.05)
    assert train["unknown_fraction"] < 0.03
    assert ("learnt as [UNK]: take --config.data.tokenizer" in format_unknown(corpus.summary(), corpus.task.unknown_remedy)) == (
        share > 0
    )


@pytest.mark.realdata
def test_wikipedia_with_the_published_vocabulary(real_data: Path) -> None:
    config = pretraining_config(
        source=f"text:{real_data}/wikipedia-en/wiki.valid.txt.xz",
        vocab_path=str(real_data / "vocab" / "bert-base-uncased-vocab.txt"),
        sequence_length=128,
        vocab_size=30522,
    )
    corpus = load(config)
    train = corpus.counts["train"]
    assert train["documents"] + corpus.counts["validation"]["documents"] == 65
    assert train["padding_fraction"] < 0.2
    assert 0.4 < corpus.train.all()["next_sentence"].mean() < 0.6
    assert 0 < train["unknown_fraction"] < 0.005
    assert 0.3 < train["used_vocabulary"] < 1
    assert 6 < corpus.unigram_entropy < 8
