"""The batch of a step as a pure function of the step, on any number of processes, and each row once
an epoch.
"""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from msgspec.structs import replace

from mhsh.config.schema import Config
from mhsh.data.batches import Batches, prefetch
from mhsh.data.corpus import Corpus
from mhsh.data.pretraining import PretrainingTask
from mhsh.data.random_numbers import derived_seed
from mhsh.data.tables import ExampleTable
from mhsh.data.wordpiece import Tokenizer
from tests.data.preparing import LAYOUTS, digest, pretraining_config

B = 7


@pytest.fixture(scope="module", params=LAYOUTS)
def loaded(request: pytest.FixtureRequest, english_source: str) -> tuple[Config, Corpus[Tokenizer]]:
    config = pretraining_config(**LAYOUTS[request.param], source=english_source, seed=3)
    corpus = PretrainingTask(config.model, config.data).load()
    assert len(corpus.train) % B  # else an epoch would end with a step and prove less
    assert len(corpus.validation) % B
    return config, corpus


def inputs_of(table: ExampleTable, config: Config) -> np.ndarray:
    """The inputs of all rows [R,T], as they are stored."""
    tokens = table.all()["tokens"].astype(np.int32)
    return np.ascontiguousarray(tokens[:, : config.data.sequence_length])


def original(batch: dict[str, np.ndarray], config: Config) -> np.ndarray:
    """The inputs before masking."""
    inputs = batch["inputs"].copy()
    if config.model.objective == "mlm":
        rows, slots = np.nonzero(batch["weights"])
        inputs[rows, batch["targets_position"][rows, slots]] = batch["targets"][rows, slots]
    return inputs


def test_keys_shapes_and_types(loaded: tuple[Config, Corpus[Tokenizer]]) -> None:
    config, corpus = loaded
    model, data = config.model, config.data
    places = (B, data.sequence_length)
    slots = places if model.objective == "clm" else (B, data.max_predictions)
    expected = dict.fromkeys(("inputs", "inputs_position", "inputs_segmentation"), (places, np.int32))
    expected |= {"targets": (slots, np.int32), "weights": (slots, np.float32)}
    if model.objective == "mlm":
        expected["targets_position"] = (slots, np.int32)
    if model.num_token_types:
        expected["token_types"] = (places, np.int32)
    if model.next_sentence:
        expected |= {"next_sentence": ((B,), np.int32), "row_weights": ((B,), np.float32)}
    train = corpus.train_steps(B)[3]
    assert {name: (values.shape, values.dtype) for name, values in train.items()} == expected
    for batch in corpus.validation_batches(B):
        assert {name: (values.shape, values.dtype) for name, values in batch.items()} == expected
    if model.next_sentence:
        assert (train["row_weights"] == 1).all()
    if model.objective == "clm":
        assert (train["weights"] == 1).all()


def test_a_step_is_a_pure_function(loaded: tuple[Config, Corpus[Tokenizer]]) -> None:
    config, corpus = loaded
    steps = corpus.train_steps(B)
    expected = [digest(steps[k]) for k in range(20)]
    assert len(set(expected)) == 20
    assert [digest(steps[k]) for k in (13, 4)] == [expected[13], expected[4]]  # in any order
    assert [digest(batch) for batch in prefetch(steps, 0, 20)] == expected
    assert [digest(batch) for batch in prefetch(steps, 11, 17)] == expected[11:17]  # as a resumed run reads
    assert list(prefetch(steps, 5, 5)) == []
    reloaded = PretrainingTask(config.model, config.data).load()
    assert reloaded.fingerprint == corpus.fingerprint
    again = reloaded.train_steps(B)
    assert [digest(again[k]) for k in range(20)] == expected
    assert digest(steps[3_000_000]) != digest(steps[3_000_001])
    other = dataclasses.replace(corpus, task=PretrainingTask(config.model, replace(config.data, seed=4))).train_steps(B)
    assert not np.array_equal(original(other[0], config), original(steps[0], config))


def test_every_row_once_an_epoch(loaded: tuple[Config, Corpus[Tokenizer]]) -> None:
    """Also where an epoch ends inside a step: the stream of rows, not of steps, is what repeats."""
    config, corpus = loaded
    num_rows = len(corpus.train)
    steps = corpus.train_steps(B)
    rows = np.concatenate([original(steps[k], config) for k in range(-(-3 * num_rows // B))])
    everything = Counter(map(bytes, inputs_of(corpus.train, config)))
    epochs = [[bytes(row) for row in rows[epoch * num_rows : (epoch + 1) * num_rows]] for epoch in range(3)]
    for epoch in epochs:
        assert Counter(epoch) == everything
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]  # in an order of its own
    assert epochs[0] != [bytes(row) for row in inputs_of(corpus.train, config)]


def test_masking_is_drawn_anew_each_epoch_and_hangs_on_the_row(english_source: str) -> None:
    config = pretraining_config(source=english_source, mask_fraction=0.3)
    corpus = PretrainingTask(config.model, config.data).load()
    num_rows = len(corpus.train)
    epochs = {}
    # Another batch size shifts every row to another step and place; its masking must not care.
    for size in (num_rows, 5):
        steps = corpus.train_steps(size)
        batches = [steps[k] for k in range(-(-2 * num_rows // size))]
        inputs = np.concatenate([batch["inputs"] for batch in batches])
        keys = np.concatenate([original(batch, config) for batch in batches])
        for epoch in (0, 1):
            part = slice(epoch * num_rows, (epoch + 1) * num_rows)
            epochs[size, epoch] = Counter(zip(map(bytes, keys[part]), map(bytes, inputs[part]), strict=True))
    assert epochs[num_rows, 0] == epochs[5, 0]
    assert epochs[num_rows, 1] == epochs[5, 1]
    same = sum((epochs[5, 0] & epochs[5, 1]).values())
    assert same < 0.1 * num_rows


@pytest.mark.parametrize("slices", [[slice(0, 7)], [slice(0, 3), slice(3, 7)], [slice(n, n + 1) for n in range(7)]])
def test_slices_of_processes_are_the_batch(loaded: tuple[Config, Corpus[Tokenizer]], slices: list[slice]) -> None:
    _, corpus = loaded
    for make in (corpus.train_steps, corpus.validation_batches):
        whole = make(B)
        parts = [make(B, part) for part in slices]
        for k in range(min(len(whole), 25)):
            batches = [part[k] for part in parts]
            together = {name: np.concatenate([batch[name] for batch in batches]) for name in whole[k]}
            assert digest(together) == digest(whole[k])


def test_validation_is_fixed_and_counts_every_row_once(loaded: tuple[Config, Corpus[Tokenizer]]) -> None:
    config, corpus = loaded
    rows = inputs_of(corpus.validation, config)
    batches = corpus.validation_batches(B)
    assert len(batches) == -(-len(rows) // B)
    first, second = ([batches[k] for k in range(len(batches))] for _ in range(2))
    assert [digest(batch) for batch in first] == [digest(batch) for batch in second]
    assert [digest(batch) for batch in prefetch(batches, 0, len(batches))] == [digest(batch) for batch in first]
    everything = {name: np.concatenate([batch[name] for batch in first]) for name in first[0]}
    real = np.arange(len(batches) * B) < len(rows)
    assert not everything["weights"][~real].any()
    assert (everything["weights"][real].sum(1) >= 1).all()
    if config.model.next_sentence:
        np.testing.assert_array_equal(everything["row_weights"], real.astype(np.float32))
    np.testing.assert_array_equal(original({name: values[real] for name, values in everything.items()}, config), rows)
    # The padding rows look like rows, so that nothing in a model divides by zero over them.
    assert (everything["inputs_segmentation"].sum(1) >= 1).all()


def test_validation_of_fewer_rows_than_a_batch(loaded: tuple[Config, Corpus[Tokenizer]]) -> None:
    _, corpus = loaded
    num_rows = len(corpus.validation)
    (batch,) = corpus.validation_batches(3 * num_rows)
    assert len(batch["inputs"]) == 3 * num_rows
    assert (batch["weights"].sum(1) > 0).tolist() == [True] * num_rows + [False] * 2 * num_rows


def test_an_iterator_left_early_can_be_closed(loaded: tuple[Config, Corpus[Tokenizer]]) -> None:
    _, corpus = loaded
    batches = prefetch(corpus.train_steps(B), 0, 1000)
    next(batches)
    batches.close()
    with pytest.raises(ValueError, match="closed"):
        next(batches)


def test_seeds_differ_by_purpose_and_may_be_large() -> None:
    seeds = [derived_seed(seed, purpose) for seed in (0, 1, 2**63, 2**100) for purpose in range(1, 10)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_batches_are_a_sequence_that_ends() -> None:
    batches = Batches(3, lambda number: {"number": np.array(number)})
    assert [int(batch["number"]) for batch in batches] == [0, 1, 2]
    with pytest.raises(IndexError, match="there is no batch 3 of 3"):
        batches[3]
