"""What TensorBoard shows of a run that was killed and resumed."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from mhsh.storage.run_folder import RunFolder
from mhsh.training.trackers import TensorBoard


def row(step: int, **values: Any) -> dict[str, Any]:
    return {"step": step, "split": "train", "tokens": 8 * step, "flops": 64 * step, "seconds": 0.5 * step, **values}


def events(path: Path) -> list[Event]:
    """Those of a file, each with its length and two checksums around it (a TFRecord)."""
    data, begin, found = path.read_bytes(), 0, []
    while begin < len(data):
        (length,) = struct.unpack_from("<Q", data, begin)
        found.append(Event.FromString(data[begin + 12 : begin + 12 + length]))
        begin += 16 + length
    return found


def shown(folder: RunFolder) -> list[tuple[int, str, float]]:
    """The scalars that TensorBoard shows: the start of a session drops those of its step and later
    (`_CheckForRestartAndMaybePurge` of its event_accumulator.py).
    """
    scalars: list[tuple[int, str, float]] = []
    for path in sorted(Path(folder.tensorboard_path).iterdir()):
        for event in events(path):
            if event.session_log.status == SessionLog.START:
                scalars = [each for each in scalars if each[0] < event.step]
            scalars += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
    return scalars


def test_a_resumed_run_has_every_step_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    for begin, end in ((0, 30), (20, 40), (40, 45)):
        monkeypatch.setattr("time.time", lambda begin=begin: 1e9 + begin)  # which names the file
        board = TensorBoard(folder, begin)
        for step in range(begin + 1, end + 1):
            board.on_row(row(step, loss=float(begin + step), grad_norm=float("inf"), batch="00ff"))
        board.close(failed=True)
    expected = [(step, 0 if step <= 20 else 20 if step <= 40 else 40) for step in range(1, 46)]
    assert shown(folder) == [(step, "train/loss", begin + step) for step, begin in expected]  # what is not finite is left out
