"""The translation corpus: what a step sees, on any number of processes and after any resumption;
splits, sources, vocabularies.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from mhsh.config.resolve import from_dict
from mhsh.config.schema import Config
from mhsh.data.batches import prefetched
from mhsh.data.corpus import Corpus
from mhsh.data.load import load_corpus
from mhsh.data.tables import unigram_entropy
from mhsh.data.tokenizers.subword import EOS_ID, SubwordTokenizer, train_subword
from mhsh.data.translation.synthetic_pairs import held_out_pairs
from mhsh.errors import UserError
from mhsh.run_folder import vocab_file
from tests.data.conftest import CONFIG

B = 5
T = 64
Make = Callable[..., Config]


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


@pytest.fixture(scope="module")
def make(files: str) -> Make:
    def build(**fields: Any) -> Config:
        model = CONFIG["model"] | dict(objective="translation", num_decoder_layers=2, num_token_types=0, next_sentence=False)
        data = dict(
            source=files,
            validation_source="",
            tokenizer="bpe",
            vocab_path="",
            sequence_length=T,
            layout="packed",
            max_length_ratio=4.0,
            validation_fraction=0.1,
            validation_sentences=0,
            seed=0,
        )
        model |= {name: fields.pop(name) for name in list(fields) if name in model}
        assert fields.keys() <= data.keys()
        return from_dict(CONFIG | {"model": model, "data": data | fields})

    return build


def load(config: Config, saved: Path | None = None) -> Corpus[SubwordTokenizer]:
    return load_corpus(config, saved and saved / "tokenizer.json")


@pytest.fixture(scope="module")
def corpora(make: Make) -> dict[str, Corpus[SubwordTokenizer]]:
    return {layout: load(make(layout=layout)) for layout in ("packed", "bucketed")}


def digest(batch: dict[str, np.ndarray]) -> str:
    state = hashlib.sha256()
    for name in sorted(batch):
        state.update(f"{name} {batch[name].shape} {batch[name].dtype}".encode())
        state.update(np.ascontiguousarray(batch[name]))
    return state.hexdigest()


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
    return Counter(sources(corpus, table.take(np.arange(len(table)), T)))


def num_of_length(corpus: Corpus[SubwordTokenizer]) -> dict[int, int]:
    """The training examples of each length."""
    found: Counter[int] = Counter()
    for group in corpus.train.groups:
        found[group.shapes["inputs"][0]] += group.count
    return dict(found)


@pytest.mark.parametrize("layout", ["packed", "bucketed"])
def test_keys_shapes_and_weights(corpora: dict[str, Corpus[SubwordTokenizer]], layout: str) -> None:
    corpus = corpora[layout]
    ints = ["inputs", "inputs_position", "inputs_segmentation", "decoder_inputs", "targets", "targets_position"]
    shapes = set()
    steps = corpus.train_steps(B)
    for batch in [*(steps[k] for k in range(200)), *corpus.validation_batches(B)]:
        assert {name: values.dtype for name, values in batch.items()} == {
            **dict.fromkeys([*ints, "targets_segmentation"], np.int32),
            "weights": np.float32,
        }
        (shape,) = {values.shape for values in batch.values()}
        assert shape[0] * shape[1] == B * T  # equal tokens a batch
        shapes.add(shape)
    assert shapes <= {(B * 8, T // 8), (B * 4, T // 4), (B * 2, T // 2), (B, T)}
    assert len(shapes) == (1 if layout == "packed" else 4)
    for k in range(10):
        np.testing.assert_array_equal(steps[k]["weights"], steps[k]["targets_segmentation"] > 0)


def test_a_bucketed_step_is_a_pure_function(corpora: dict[str, Corpus[SubwordTokenizer]], make: Make) -> None:
    corpus = corpora["bucketed"]
    steps = corpus.train_steps(B)
    expected = [digest(steps[k]) for k in range(25)]
    assert len(set(expected)) == 25
    assert [digest(steps[k]) for k in (13, 4)] == [expected[13], expected[4]]
    assert [digest(batch) for batch in prefetched(steps, 11, 17)] == expected[11:17]  # as a resumed run reads
    again = load(make(layout="bucketed"))
    assert again.fingerprint == corpus.fingerprint
    assert [digest(again.train_steps(B)[k]) for k in range(25)] == expected
    other = dataclasses.replace(again, task=dataclasses.replace(again.task, data=replace(again.task.data, seed=1))).train_steps(B)
    assert [digest(other[k]) for k in range(25)] != expected
    assert digest(steps[3_000_000]) != digest(steps[3_000_001])


def test_bucketed_epochs_hold_pairs_once_and_leave_out_other_ones_each_time(corpora: dict[str, Corpus[SubwordTokenizer]]) -> None:
    corpus = corpora["bucketed"]
    everything = split_sources(corpus, "train")
    sizes = num_of_length(corpus)
    assert all(size >= B * T // length for length, size in sizes.items())
    per_epoch = sum(size // (B * T // length) for length, size in sizes.items())
    steps = corpus.train_steps(B)
    left_out, orders = [], []
    for epoch in range(3):
        batches = [steps[k] for k in range(epoch * per_epoch, (epoch + 1) * per_epoch)]
        seen = Counter(text for batch in batches for text in sources(corpus, batch))
        assert max(seen.values()) == 1
        assert seen.keys() <= everything.keys()
        left_out.append(everything - seen)
        assert len(left_out[-1]) == sum(size % (B * T // length) for length, size in sizes.items())
        orders.append([batch["inputs"].shape[1] for batch in batches])
    assert left_out[0] != left_out[1] != left_out[2]
    assert Counter(orders[0]) == Counter(orders[1])
    assert orders[0] != orders[1]
    assert orders[0] != sorted(orders[0])


@pytest.mark.parametrize("processes", [2, 4])
def test_slices_of_processes_are_the_batch(corpora: dict[str, Corpus[SubwordTokenizer]], processes: int) -> None:
    corpus, size = corpora["bucketed"], 8
    for batches in (corpus.train_steps, corpus.validation_batches):
        whole = batches(size)
        parts = [
            batches(size, lambda count, n=number: slice(n * count // processes, (n + 1) * count // processes))
            for number in range(processes)
        ]
        for k in range(min(len(whole), 12)):
            slices = [part[k] for part in parts]
            assert digest({name: np.concatenate([part[name] for part in slices]) for name in whole[k]}) == digest(whole[k])


def test_validation_counts_every_pair_once(corpora: dict[str, Corpus[SubwordTokenizer]]) -> None:
    corpus = corpora["bucketed"]
    batches = corpus.validation_batches(B)
    first = [batches[k] for k in range(len(batches))]
    seen = Counter(text for batch in first for text in sources(corpus, batch, weighted=True))
    assert seen == split_sources(corpus, "validation")
    assert any(not batch["weights"].any(1).all() for batch in first)  # there are filler rows
    assert all(batch["inputs_segmentation"].any(1).all() for batch in first)  # which look like rows
    assert [digest(batch) for batch in prefetched(batches, 0, len(batches))] == [digest(batch) for batch in first]


def test_rows_too_few_for_a_batch_go_into_longer_ones(corpora: dict[str, Corpus[SubwordTokenizer]]) -> None:
    corpus = corpora["bucketed"]
    sizes = num_of_length(corpus)
    size = sizes[T // 8] // 8 + 1  # more than the shortest rows can fill
    lengths = {corpus.train_steps(size)[k]["inputs"].shape for k in range(40)}
    assert T // 8 not in {length for _, length in lengths}
    steps = corpus.train_steps(size)
    seen = {text for k in range(400) for text in sources(corpus, steps[k])}
    assert seen == set(split_sources(corpus, "train"))
    corpus.check_batch(size)
    with pytest.raises(UserError, match=r"longest training rows of data\.source fill no batch of 64 tokens, and would never"):
        corpus.check_batch(len(corpus.train) + 1)


def test_splits_share_nothing_and_the_counts_say_what_is_in_them(corpora: dict[str, Corpus[SubwordTokenizer]]) -> None:
    corpus = corpora["packed"]
    train, validation = split_sources(corpus, "train"), split_sources(corpus, "validation")
    assert train.keys().isdisjoint(validation)
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


def test_pairs_of_validation_leave_training(make: Make, tmp_path: Path) -> None:
    (tmp_path / "t.en").write_text("".join(f"word {number}\n" for number in range(200)))
    (tmp_path / "t.de").write_text("".join(f"Wort {number}\n" for number in range(200)))
    (tmp_path / "v.en").write_text("".join(f"word {number}\n" for number in (3, 500, 7)))
    (tmp_path / "v.de").write_text("".join(f"Wort {number}\n" for number in (3, 500, 8)))
    source, validation = (f"text:{tmp_path}/{name}.en,{tmp_path}/{name}.de" for name in "tv")
    corpus = load(make(source=source, validation_source=validation))
    assert corpus.counts["in_both_splits"] == 1
    assert (corpus.counts["train"]["pairs"], corpus.counts["validation"]["pairs"]) == (199, 3)
    assert "word 3" not in split_sources(corpus, "train")


def test_numbers_are_validated_on_held_out_ones(make: Make) -> None:
    corpus = load(make(source="numbers:2000", sequence_length=64))
    assert corpus.counts["validation"]["pairs"] == 1000
    assert split_sources(corpus, "validation") == Counter(english for english, _ in held_out_pairs())
    assert corpus.counts["in_both_splits"] == 0


def test_saved_vocabulary_wins(make: Make, tmp_path: Path) -> None:
    config = make()
    trained = load(config)
    trained.save_vocab(tmp_path)
    assert vocab_file(config) == "tokenizer.json"
    other = train_subword("bpe", ["other words altogether " * 3], 300)
    other.save(tmp_path / "other.json")
    named = make(vocab_path=str(tmp_path / "other.json"))
    assert load(named).tokenizer.fingerprint == other.fingerprint
    assert load(named, tmp_path).fingerprint == trained.fingerprint
    with pytest.raises(UserError, match=r"the run's vocabulary .*tokenizer\.json is missing"):
        load(config, tmp_path / "gone")


def test_a_vocabulary_that_does_not_match(make: Make, tmp_path: Path) -> None:
    train_subword("unigram", ["some words"], 300).save(tmp_path / "u.json")
    with pytest.raises(UserError, match=r"u\.json is a unigram vocabulary, but data\.tokenizer = 'bpe'"):
        load(make(vocab_path=str(tmp_path / "u.json")))
    load(make()).save_vocab(tmp_path)
    with pytest.raises(UserError, match=r"tokenizer\.json has 400 tokens, more than model\.vocab_size = 399; set .* to 400"):
        load(make(vocab_size=399), tmp_path)


def test_pairs_none_of_which_fit(make: Make, tmp_path: Path) -> None:
    (tmp_path / "t.en").write_text("".join(f"{'long ' * 50}{number}\n" for number in range(50)))
    (tmp_path / "t.de").write_text("".join(f"{'lang ' * 50}{number}\n" for number in range(50)))
    source = f"text:{tmp_path}/t.en,{tmp_path}/t.de"
    with pytest.raises(UserError, match=r"leaves no pair for train: \d+ are longer than data\.sequence_length = 8 and 0"):
        load(make(source=source, sequence_length=8, vocab_size=270))
    with pytest.raises(UserError, match=r"leaves 0 pairs for validation, .*data\.validation_fraction"):
        load(make(source=source, sequence_length=128, validation_fraction=0.0))


@pytest.mark.realdata
def test_multi30k(make: Make, real_data: Path) -> None:
    folder = real_data / "mt-ende"
    source, validation = (f"text:{folder}/multi30k.{split}.en.gz,{folder}/multi30k.{split}.de.gz" for split in ("train", "val"))
    corpus = load(make(source=source, validation_source=validation, vocab_size=4000, sequence_length=128, max_length_ratio=3.0))
    assert corpus.counts["read"] == 29_000
    assert corpus.counts["train"]["pairs"] > 28_900
    assert corpus.counts["train"]["target_padding_fraction"] < 0.06
    assert corpus.counts["validation"]["pairs"] == 1014
    with gzip.open(folder / "multi30k.val.de.gz", "rt", encoding="utf-8", newline="\n") as file:
        german = [" ".join(line.split()) for line in file]
    assert [corpus.tokenizer.decode(ids) for ids in corpus.tokenizer.encode_batch(german)] == german
