"""What tests of commands share: the root as working folder, the one line of a failing command."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mhsh.cli.main import main
from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where configs/ lies."""
    monkeypatch.chdir(ROOT)


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """fails("train", ...): the one line that a failing command says."""

    def said(*arguments: str) -> str:
        capsys.readouterr()
        assert main(list(arguments)) == 2
        captured = capsys.readouterr()
        assert captured.err.count("\n") == 1 and "Traceback" not in captured.err, captured.err
        return captured.err

    return said
