"""How much is masked, by what, and what never is."""

from __future__ import annotations

import numpy as np
import pytest

from mhsh.config.schema import DataConfig
from mhsh.data.masking import mask_examples
from mhsh.data.random_numbers import random_bits
from mhsh.data.wordpiece import SPECIALS, WordPieceTokenizer

V, T, P = 1000, 64, 12
PAD, UNK, CLS, SEP, MASK = range(5)
SPECIAL = np.arange(V) < 5
TOKENIZER = WordPieceTokenizer([*SPECIALS, *map(str, range(V - 5))], lowercase=True)
DATA = DataConfig(mask_fraction=0.15, max_predictions=P)


def masked_rows(inputs: np.ndarray, rng: np.random.Generator) -> list[dict[str, np.ndarray]]:
    """The rows [B,T] masked together, by keys drawn from `rng`."""
    masked = mask_examples(inputs, rng.integers(2**64, size=len(inputs), dtype=np.uint64), TOKENIZER, DATA)
    return [{name: values[row] for name, values in masked.items()} for row in range(len(inputs))]


def make_row(rng: np.random.Generator, real: int = T) -> np.ndarray:
    inputs = np.zeros(T, np.int32)
    inputs[:real] = rng.integers(5, V, real)
    inputs[0] = CLS
    inputs[real - 1] = inputs[real // 2] = SEP
    inputs[real // 3] = UNK
    return inputs


def check(row: np.ndarray, masked: dict[str, np.ndarray], size: int = P) -> np.ndarray:
    """What holds for every masked row; returns the chosen positions."""
    count = int(masked["weights"].sum())
    assert masked["targets"].shape == masked["targets_position"].shape == masked["weights"].shape == (size,)
    assert masked["targets"].dtype == masked["targets_position"].dtype == masked["inputs"].dtype == np.int32
    assert masked["weights"].dtype == np.float32
    assert masked["weights"].tolist() == [1.0] * count + [0.0] * (size - count)
    positions = masked["targets_position"][:count]
    assert (np.diff(positions) > 0).all()
    assert not masked["targets_position"][count:].any()
    assert not masked["targets"][count:].any()
    np.testing.assert_array_equal(masked["targets"][:count], row[positions])
    assert not SPECIAL[row[positions]].any()
    elsewhere = np.ones(T, bool)
    elsewhere[positions] = False
    np.testing.assert_array_equal(masked["inputs"][elsewhere], row[elsewhere])
    return positions


def test_fifteen_percent_eighty_ten_ten() -> None:
    rng = np.random.default_rng(0)
    num_rows, total = 6000, np.zeros(T)
    replaced = {"mask": 0, "same": 0, "other": 0}
    drawn: list[int] = []
    row = make_row(rng)
    maskable = np.flatnonzero(~SPECIAL[row])
    for masked in masked_rows(np.tile(row, (num_rows, 1)), rng):
        positions = check(row, masked)
        assert len(positions) == round(0.15 * len(maskable)) == 9
        total[positions] += 1
        new, old = masked["inputs"][positions], row[positions]
        replaced["mask"] += int((new == MASK).sum())
        replaced["same"] += int((new == old).sum())
        others = new[(new != MASK) & (new != old)]
        replaced["other"] += len(others)
        drawn += others.tolist()
    count = sum(replaced.values())
    assert count == 9 * num_rows
    same_by_chance = 0.1 / (V - 5)
    for kind, share in (("mask", 0.8), ("same", 0.1 + same_by_chance), ("other", 0.1 - same_by_chance)):
        assert abs(replaced[kind] / count - share) < 5 * np.sqrt(share * (1 - share) / count), kind
    # Every maskable position alike: 9 of n each time, five standard deviations.
    share = 9 / len(maskable)
    assert (np.abs(total[maskable] / num_rows - share) < 5 * np.sqrt(share * (1 - share) / num_rows)).all()
    # Random tokens come from the whole vocabulary but the specials.
    assert min(drawn) >= 5
    assert len(set(drawn)) > 0.98 * (V - 5)
    assert abs(np.mean(drawn) - (V + 4) / 2) < 5 * (V / np.sqrt(12)) / np.sqrt(len(drawn))


def test_a_row_s_mask_hangs_on_the_row_and_its_key_alone() -> None:
    rng = np.random.default_rng(4)
    rows = np.stack([make_row(rng, real) for real in (T, 20, 6, T, T)])
    before = rows.copy()
    rows.flags.writeable = False
    keys = rng.integers(2**64, size=len(rows), dtype=np.uint64)
    whole = mask_examples(rows, keys, TOKENIZER, DATA)
    # In another order and company, and alone.
    order = np.array([3, 1, 4, 0, 0])
    for name, values in mask_examples(rows[order], keys[order], TOKENIZER, DATA).items():
        np.testing.assert_array_equal(values, whole[name][order])
    for row in range(len(rows)):
        for name, values in mask_examples(rows[row : row + 1], keys[row : row + 1], TOKENIZER, DATA).items():
            np.testing.assert_array_equal(values[0], whole[name][row])
    other = mask_examples(rows, keys + np.uint64(1), TOKENIZER, DATA)
    assert not np.array_equal(other["targets_position"], whole["targets_position"])
    np.testing.assert_array_equal(rows, before)


@pytest.mark.parametrize(("size", "fraction"), [(9, 0.3), (T, 0.3), (P, 0.15), (3, 0.5)])
def test_positions_are_taken_in_the_order_of_their_random_bits(size: int, fraction: float) -> None:
    """Against a plain sort; also of short rows, and of one without a token that can be masked."""
    rng = np.random.default_rng(8)
    rows = np.stack([make_row(rng, int(real)) for real in (3, 5, 8, *rng.integers(4, T + 1, 300))])
    rows[0, :3] = [CLS, UNK, SEP]
    keys = rng.integers(2**64, size=len(rows), dtype=np.uint64)
    masked = mask_examples(rows, keys, TOKENIZER, DataConfig(mask_fraction=fraction, max_predictions=size))
    for number, (row, key) in enumerate(zip(rows, keys, strict=True)):
        bits = random_bits(np.array([key]), T // 2)[0].view(np.uint32)
        maskable = sorted(np.flatnonzero(~SPECIAL[row]), key=lambda position: bits[position])
        budget = min(max(1, round(fraction * len(maskable))), size, len(maskable))
        positions = check(row, {name: values[number] for name, values in masked.items()}, size)
        assert positions.tolist() == sorted(maskable[:budget])
