"""Made-up English and TFDS's folder for the tests of mhsh/data."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mhsh.data.documents import documents
from mhsh.errors import UserError
from tests.conftest import ROOT
from tests.data.small_fine_tuning import VOCAB


def printed(code: str, *arguments: str, given: str = "", **environment: str) -> str:
    """What a new Python prints."""
    command = [sys.executable, "-X", "utf8", "-c", code, *arguments]
    run = functools.partial(subprocess.run, capture_output=True, encoding="utf-8", check=False, cwd=ROOT)
    done = run(command, input=given, env=os.environ | environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(source: str) -> list[str]:
    """The documents of a data.source."""
    return list(documents(source))


def refusal(source: str) -> str:
    """What is said of a data.source, in one line."""
    with pytest.raises(UserError) as raised:
        read(source)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@contextlib.contextmanager
def tfds_folder(folder: Path) -> Iterator[None]:
    """Inside the `with`, TFDS looks for data sets in `folder`, as if TFDS_DATA_DIR named it."""
    from tensorflow_datasets.core import constants  # takes a second

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "DATA_DIR", str(folder))
        yield


@pytest.fixture(scope="session")
def english() -> list[str]:
    """60 documents, whose every sentence names its document: "... in doc17 ..."."""
    rng = random.Random(7)
    syllables = "ba re ti lo mun sel da ker fi on ast ul".split()  # noqa: SIM905
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(300)]

    def sentence(document: int) -> str:
        body = [*rng.choices(words, k=rng.randint(2, 9)), f"in doc{document}", *rng.choices(words, k=rng.randint(1, 3))]
        return " ".join(body).capitalize() + "."

    def document(number: int) -> str:
        return "\n".join(" ".join(sentence(number) for _ in range(rng.randint(1, 4))) for _ in range(rng.randint(2, 5)))

    return [document(number) for number in range(60)]


@pytest.fixture(scope="session")
def english_source(english: list[str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The documents of `english` in a file, as a data.source."""
    path = tmp_path_factory.mktemp("english") / "text.txt"
    path.write_text("\n\n".join(english) + "\n", encoding="utf-8")
    return f"text:{path}"


@pytest.fixture(scope="module")
def vocab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """VOCAB as a vocab.txt."""
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("".join(token + "\n" for token in VOCAB))
    return path
