"""The line of a run on a terminal and elsewhere, and a real run on a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import io
import itertools
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mhsh.storage.run_folder import RunFolder
from mhsh.training.progress import Display, fit_line
from tests.conftest import ROOT
from tests.runs import CONFIG, command, cut_back


def row(step: int, **values: Any) -> dict[str, Any]:
    figures = {"loss": 2.9113, "learning_rate": 0.002, "grad_norm": 0.612, "tokens_per_second": 4000.0}
    return {"step": step, "split": "train", "tokens": 1000 * step} | figures | values


def resize(terminal: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


def read(terminal: int) -> str:
    """All that standard output has got since the last time."""
    print(end="#", flush=True)
    written = ""
    while not written.endswith("#"):
        written += os.read(terminal, 100_000).decode()
    return written[:-1].replace("\r\n", "\n")


def screen(written: str) -> list[str]:
    """The lines that a terminal which is wide enough shows of what was written."""
    lines, column = [""], 0
    for part in re.findall(r"\x1b\[J|\r|\n|[^\x1b\r\n]+", written):
        if part == "\x1b[J":
            lines[-1] = lines[-1][:column]
        elif part == "\r":
            column = 0
        elif part == "\n":
            lines.append("")
        else:
            lines[-1] = lines[-1][:column] + part + lines[-1][column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines]


@pytest.fixture
def put_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], int]]:
    """put_terminal(80): a terminal of 80 columns takes the place of standard output. Returns its
    other end. To be called by the test: before it, pytest puts its own there.
    """
    with contextlib.ExitStack() as stack:

        def put(columns: int) -> int:
            ours, theirs = pty.openpty()
            stack.callback(os.close, ours)
            resize(ours, columns)
            monkeypatch.setattr("sys.stdout", stack.enter_context(open(theirs, "w", encoding="utf-8")))
            return ours

        yield put
        monkeypatch.undo()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A list whose last number is the time."""
    seconds = [100.0]
    monkeypatch.setattr("mhsh.training.progress.time", SimpleNamespace(monotonic=lambda: seconds[-1]))
    return seconds


WORDS = {
    "step": "1200/100000",
    "loss": "loss 2.911",
    "val": "val 2.954",
    "lr": "lr 0.002",
    "grad": "grad 0.61",
    "pace": "208 ms/step",
    "tokens": "4,122 tokens/s",
    "mfu": "MFU 41.3%",
    "left": "3 h 12 min left",
}


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (119, "1200/100000  loss 2.911  val 2.954  lr 0.002  grad 0.61  208 ms/step  4,122 tokens/s  MFU 41.3%  3 h 12 min left"),
        (79, "1200/100000  loss 2.911  val 2.954  lr 0.002  208 ms/step  3 h 12 min left"),
        (59, "1200/100000  loss 2.911  val 2.954  3 h 12 min left"),
        (20, "1200/100000  3 h 12 "),
    ],
)
def test_a_narrow_line_leaves_out_what_matters_least(width: int, expected: str) -> None:
    assert fit_line(WORDS, width) == expected and len(expected) <= width


def test_away_from_a_terminal_a_line_every_few_seconds(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    display = Display("run", 10)
    display.on_phase("compiling")
    display.on_phase("preparing")
    for step in range(1, 11):
        clock.append(100.0 + 3 * step)
        display.on_step(step)
        display.on_row(row(step, mfu=0.4125))
        if step == 5:
            display.on_row(row(step, loss=2.25) | {"split": "validation"})
    display.close()
    figures = "lr 0.002  grad 0.61  250 ms/step  4,000 tokens/s  MFU 41.2%"
    assert capsys.readouterr().out.splitlines() == [
        "run: compiling the training step",
        f"run: step 1/10  loss 2.911  {figures}  2.2 s left",  # nothing is known but what the step itself took
        f"run: step 5/10  loss 2.911  {figures}  15.0 s left",  # by the clock a step takes three seconds
        "run: step 5/10  validation loss 2.250",
        f"run: step 9/10  loss 2.911  val 2.250  {figures}  3.0 s left",
        f"run: step 10/10  loss 2.911  val 2.250  {figures}",
    ]


def test_a_process_that_is_not_the_first_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display("run", 1, quiet=True)
    display.on_phase("compiling")
    display.on_step(1)
    display.on_row(row(1))
    display.note("no")
    display.close()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_on_a_terminal_one_line_is_written_again_and_notes_stay(
    put_terminal: Callable[[int], int], columns: int, clock: list[float]
) -> None:
    terminal = put_terminal(columns)
    display = Display("run", 100)
    for step in range(1, 6):
        clock.append(100.0 + step)
        display.on_step(step)
        display.on_row(row(step))
    display.on_row(row(5, loss=2.25) | {"split": "validation"})
    display.on_phase("evaluating")
    written = read(terminal)
    assert len(screen(written)) == 2 and screen(written)[0] == "run: step 5/100  validation loss 2.250"
    assert screen(written)[1].startswith("5/100  loss 2.911  val 2.250") and screen(written)[1].endswith("  evaluating")
    assert max(map(len, screen(written))) < columns
    resize(terminal, 40)
    display.on_phase("training")
    clock.append(106.0)
    display.on_step(6)
    again = read(terminal)
    assert all(len(line) < 40 for line in re.split(r"\r\x1b\[J|\r", again))
    display.close()
    assert screen(written + again + read(terminal)) == ["run: step 5/100  validation loss 2.250", ""]


def test_a_resumed_run_on_a_terminal(unbroken: Path, corpus: str, tmp_path: Path) -> None:
    workdir = cut_back(unbroken, tmp_path / "run", 12)
    ours, theirs = pty.openpty()
    resize(ours, 80)
    arguments = ["train", *CONFIG, corpus, f"--workdir={workdir}"]
    process = subprocess.Popen(command(*arguments), cwd=ROOT, stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    written = io.BytesIO()
    while process.poll() is None or written.getvalue()[-1:] != b"\n":
        try:
            written.write(os.read(ours, 100_000))
        except OSError:  # the other end is closed
            break
    assert process.communicate()[1] == b"" and process.returncode == 0
    os.close(ours)
    text = written.getvalue().decode().replace("\r\n", "\n")
    shown = screen(text)
    painted = [line for line in re.split(r"\r\x1b\[J|\r|\n", text) if line and line not in shown]
    assert any(line.startswith("13/36  loss") for line in painted) and "compiling the training step" in painted
    assert max(map(len, painted)) < 80 and not any(line.startswith("12/36") for line in painted)
    assert "run: resuming from the checkpoint of step 12" in shown
    *_, finished, result, outcome, to_try, checkpoint, then, end = shown
    assert re.fullmatch(r"run: finished 36 steps, in \d.*", finished) and end == ""
    assert re.fullmatch(r"run: validation loss 6\.\d{3} at step 36", result)
    assert outcome.startswith("run: on the unigram plateau (unigram entropy 3.372)")
    assert to_try.startswith("run: to try in another --workdir: --config.train.num_steps=144")
    assert checkpoint == f"run: checkpoint {workdir}/checkpoints/36"
    assert then == f"next: mhsh compare {workdir} OTHER_RUN, or mhsh predict {workdir} --text='TEXT WITH [MASK]'"
    rows = [each for each in RunFolder(workdir).rows() if each["split"] == "train"]
    for before, after in itertools.pairwise(rows):  # also from step 12, of the process before, to step 13
        elapsed = after["seconds"] - before["seconds"]
        assert after["tokens_per_second"] == pytest.approx((after["tokens"] - before["tokens"]) / elapsed)
