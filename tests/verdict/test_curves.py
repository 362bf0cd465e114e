"""Tests of reading metrics.jsonl: the fast way agrees with the line-by-line way, on sound files and
on all kinds of bad ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhsh import run_folder
from mhsh.run_folder import METRICS_FILE, RunFolder
from mhsh.verdict import curves
from mhsh.verdict.curves import AXES, SPLITS, LoggedCurves, read_by_line, read_curves, read_sound, reading

_NUMBERS = st.one_of(
    st.none(), st.integers(), st.floats(), st.just(10**400), st.just(2**63), st.just(2**53 + 1), st.booleans(), st.just("1")
)
_ROWS = st.fixed_dictionaries(
    {"step": st.integers(0, 30), "split": st.sampled_from(["train", "validation", "test"])},
    optional={
        **dict.fromkeys((*AXES[1:], "loss"), _NUMBERS),
        "batch": st.one_of(st.text(max_size=3), st.none(), st.integers()),
        "note": st.one_of(st.text(max_size=4), st.lists(st.integers(), max_size=2), st.floats()),
    },
)
_ENDS = st.sampled_from(["\n", "\n", "\n", "\n", "\r\n", "\n\n", "\n \n", " ", ""])
_STRAY = st.sampled_from(['"', "}", "{", "\n", "\\", ",", "0", "-", "e", "\x00", "\xe9", "[", " ", "null", "NaN"])


@st.composite
def _files(draw: st.DrawFn) -> bytes:
    """Rows as training writes them, more or less: now and then a stray character, another line end,
    or a cut.
    """
    rows = draw(st.lists(_ROWS, max_size=6))
    if draw(st.booleans()):
        rows = sorted(rows, key=lambda row: row["step"])
    ascii_only = draw(st.booleans())
    text = "".join(json.dumps(row, ensure_ascii=ascii_only) + draw(_ENDS) for row in rows)
    for stray in draw(st.lists(_STRAY, max_size=2)):
        place = draw(st.integers(0, len(text)))
        text = text[:place] + stray + text[place + draw(st.integers(0, 3)) :]
    content = text.encode("utf-8", "surrogatepass") if draw(st.booleans()) else text.encode("latin-1", "replace")
    return content[: draw(st.integers(0, len(content)))] if draw(st.booleans()) else content


def assert_equal(one: LoggedCurves, other: LoggedCurves) -> None:
    assert one.problems == other.problems
    for split in SPLITS:
        np.testing.assert_array_equal(one.by_split[split].loss, other.by_split[split].loss)
        for axis in AXES:
            np.testing.assert_array_equal(one.by_split[split].x[axis], other.by_split[split].x[axis])
    for key in ("step", "checksum"):
        np.testing.assert_array_equal(one.batches[key], other.batches[key])


@given(content=_files(), block_bytes=st.sampled_from([1, 30, 100, 1000, 1 << 18]))
def test_both_ways_of_reading_agree(tmp_path_factory: pytest.TempPathFactory, content: bytes, block_bytes: int) -> None:
    folder = RunFolder(tmp_path_factory.getbasetemp())
    (folder.path / METRICS_FILE).write_bytes(content)
    by_line = read_by_line(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_folder, "_BLOCK_BYTES", block_bytes)
        assert_equal(read_curves(folder), by_line)


def test_what_training_writes_is_read_the_fast_way(make_run) -> None:
    path = make_run("a", [3.0, float("nan"), 2.0] * 10, [2.5, float("nan")])
    lines = (path / METRICS_FILE).read_bytes()
    fast = read_sound([lines])
    assert fast is not None
    assert_equal(fast, read_by_line(RunFolder(path)))
    assert len(fast.by_split["train"]) == 30


def test_every_number_beside_the_loss_is_read_in_both_ways(make_run) -> None:
    path = make_run("a")
    rows: list[dict[str, Any]] = [
        {"step": step, "split": "train", "loss": 3.0, "grad_norm": step / 7, "a name: \u00b7": step} for step in range(1, 20)
    ]
    rows[5] |= {"loss": None, "grad_norm": None, "skipped": True}
    rows.append({"step": 19, "split": "validation", "loss": 2.5, "accuracy": 0.25})
    RunFolder(path).append_metrics(rows)
    fast, slow = read_sound([(path / METRICS_FILE).read_bytes()]), read_by_line(RunFolder(path))
    assert fast is not None
    for read in (fast, slow):
        train, validation = (read.by_split[split].metrics for split in SPLITS)
        assert set(train) == {"grad_norm", "a name: \u00b7", "skipped"} and set(validation) == {"accuracy"}
        np.testing.assert_array_equal(train["grad_norm"], [np.nan if step == 6 else step / 7 for step in range(1, 20)])
        np.testing.assert_array_equal(np.flatnonzero(train["skipped"] == 1), [5])
        assert validation["accuracy"].tolist() == [0.25]


@pytest.mark.parametrize(
    "damaged",
    [
        b'{"step": 1, "split": "train", "loss": 2.0}{"step": 2, "split": "train", "loss": 1.0}\n\n',
        b'{"step": 1, "split": "train",\n"loss": 2.0}\n',
        b'\n{"step": 1, "split": "train", "loss": 2.0}\n',
        b'{"step": 1.0, "split": "train", "loss": 2.0}\n',
        b'{"step": 1, "split": "train", "loss": "2"}\n',
        b'{"step": 1, "split": "train", "note": "\xff", "loss": 2}\n',
        b'{"step": 2, "split": "train", "loss": 2}\n{"step": 2, "split": "train", "loss": 2}\n',
    ],
)
def test_the_fast_way_leaves_what_is_doubtful_to_the_other(damaged: bytes) -> None:
    assert read_sound([damaged]) is None


def test_several_processes_read_the_same(make_run, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[RunFolder] = [RunFolder(make_run(name, [3.0, 2.0, loss])) for name, loss in (("a", 1.0), ("b", 0.5))]
    Path(folders[1].path / METRICS_FILE).unlink()
    with reading(folders) as read:
        alone = read()
    monkeypatch.setattr(curves, "_MUCH_BYTES", 0)
    with reading(folders) as read:
        for one, other in zip(alone, read(), strict=True):
            assert_equal(one, other)
