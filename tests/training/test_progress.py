"""The display of a run's progress, where it is no terminal."""

from __future__ import annotations

import pytest

from mhsh.training.tracking.progress import ProgressDisplay


@pytest.mark.parametrize("forced", ["", "1"], ids=["in a file", "in a notebook"])
def test_a_file_gets_lines_and_no_bar(forced: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", forced)
    with ProgressDisplay("run", 10) as display:
        display.begin(0)
        display.show({"split": "train", "step": 10, "loss": 2.5, "tokens_per_second": 1234.0})
        display.show({"split": "validation", "step": 10, "loss": 2.25})
    lines = ["run: step 10/10  loss 2.5000  1,234 tokens/s", "run: step 10/10  validation loss 2.2500"]
    assert capsys.readouterr().out.splitlines() == lines
