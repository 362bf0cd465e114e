"""The translation corpus: what a step sees, on any number of processes and after any resumption;
splits, sources, vocabularies.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mhsh.config.schema import Config
from mhsh.data.corpus import Corpus
from mhsh.data.load import load_corpus
from mhsh.data.subword import EOS_ID, SubwordTokenizer
from mhsh.data.synthetic import held_out_pairs
from mhsh.data.tables import unigram_entropy
from tests.data.preparing import translation_config

B = 5
T = 64


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> str:
    """900 pairs of one to 46 words, some twice, as a data.source; a source sentence of its own for
    each pair.
    """
    rng = random.Random(3)
    folder = tmp_path_factory.mktemp("pairs")
    words = ["alpha", "beta", "gamma", "delta", "iota", "zeta", "eta", "theta"]
    english = [" ".join([*rng.choices(words, k=rng.randint(0, 45)), f"n{number}"]) for number in range(900)]
    german = [text.replace("a", "ä").replace("eta", "ëtå") for text in english]
    (folder / "t.en").write_text("\n".join([*english, english[5], ""]) + "\n", encoding="utf-8")
    (folder / "t.de").write_text("\n".join([*german, german[5], ""]) + "\n", encoding="utf-8")
    return f"text:{folder}/t.en,{folder}/t.de"


def config_of(files: str, **fields: Any) -> Config:
    return translation_config(source=files, max_length_ratio=4.0, **fields)


@pytest.fixture(scope="module")
def corpus(files: str) -> Corpus[SubwordTokenizer]:
    return load_corpus(config_of(files), None)


def sources(corpus: Corpus[SubwordTokenizer], batch: dict[str, np.ndarray], weighted: bool = False) -> list[str]:
    """The source sentences of a batch, in its order; `weighted` leaves out those of filler rows."""
    texts = []
    for row in range(len(batch["inputs"])):
        segments = batch["inputs_segmentation"][row]
        if weighted and not batch["weights"][row].any():
            continue
        texts += [corpus.tokenizer.decode(batch["inputs"][row][segments == count]) for count in range(1, segments.max() + 1)]
    return texts


def split_sources(corpus: Corpus[SubwordTokenizer], split: str) -> Counter[str]:
    table = getattr(corpus, split)
    return Counter(sources(corpus, table.all()))


def test_keys_shapes_and_weights(corpus: Corpus[SubwordTokenizer]) -> None:
    ints = ["inputs", "inputs_position", "inputs_segmentation", "decoder_inputs", "targets", "targets_position"]
    steps = corpus.train_steps(B)
    for batch in [*(steps[k] for k in range(200)), *corpus.validation_batches(B)]:
        assert {name: values.dtype for name, values in batch.items()} == {
            **dict.fromkeys([*ints, "targets_segmentation"], np.int32),
            "weights": np.float32,
        }
        assert {values.shape for values in batch.values()} == {(B, T)}
    for k in range(10):
        np.testing.assert_array_equal(steps[k]["weights"], steps[k]["targets_segmentation"] > 0)


def test_validation_counts_every_pair_once(corpus: Corpus[SubwordTokenizer]) -> None:
    batches = corpus.validation_batches(B)
    first = [batches[k] for k in range(len(batches))]
    seen = Counter(text for batch in first for text in sources(corpus, batch, weighted=True))
    assert seen == split_sources(corpus, "validation")
    assert any(not batch["weights"].any(1).all() for batch in first)  # there are filler rows
    assert all(batch["inputs_segmentation"].any(1).all() for batch in first)  # which look like rows


def test_splits_share_nothing_and_the_counts_say_what_is_in_them(corpus: Corpus[SubwordTokenizer]) -> None:
    train, validation = split_sources(corpus, "train"), split_sources(corpus, "validation")
    assert train.keys().isdisjoint(validation) and max(train.values()) == 1
    summary = corpus.summary()
    assert json.loads(json.dumps(summary)) == summary
    assert (summary["read"], summary["empty"], summary["duplicates"], summary["in_both_splits"]) == (902, 1, 1, 0)
    for split, texts in (("train", train), ("validation", validation)):
        counts = summary[split]
        assert counts["pairs"] == sum(texts.values())
        places = counts["rows"] * T
        assert counts["source_padding_fraction"] == pytest.approx(1 - counts["source_tokens"] / places)
        assert 0 <= counts["source_padding_fraction"] < 0.2
    assert sum(summary[split][name] for split in ("train", "validation") for name in ("pairs", "too_long", "unlike")) == 900
    assert 0.05 < summary["validation"]["pairs"] / 900 < 0.15
    targets = corpus.train.all()["targets"]
    assert corpus.unigram_entropy == pytest.approx(unigram_entropy(targets[targets > 0]))
    assert (targets == EOS_ID).sum() == summary["train"]["pairs"]


def test_numbers_are_validated_on_held_out_ones() -> None:
    corpus = load_corpus(translation_config(source="numbers:2000", max_length_ratio=4.0), None)
    assert corpus.counts["validation"]["pairs"] == 1000
    assert split_sources(corpus, "validation") == Counter(english for english, _ in held_out_pairs())
    assert corpus.counts["in_both_splits"] == 0


@pytest.mark.realdata
def test_multi30k(real_data: Path) -> None:
    folder = real_data / "mt-ende"
    source, validation = (f"text:{folder}/multi30k.{split}.en.gz,{folder}/multi30k.{split}.de.gz" for split in ("train", "val"))
    fields = dict(vocab_size=4000, max_positions=128, sequence_length=128, max_length_ratio=3.0)
    corpus = load_corpus(translation_config(source=source, validation_source=validation, **fields), None)
    assert corpus.counts["read"] == 29_000
    assert corpus.counts["train"]["pairs"] > 28_900
    assert corpus.counts["train"]["target_padding_fraction"] < 0.06
    assert corpus.counts["validation"]["pairs"] == 1014
    with gzip.open(folder / "multi30k.val.de.gz", "rt", encoding="utf-8", newline="\n") as file:
        german = [" ".join(line.split()) for line in file]
    assert [corpus.tokenizer.decode(ids) for ids in corpus.tokenizer.encode_batch(german)] == german
