"""Made-up English and TFDS's folder for the tests of mhsh/data."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data.small_fine_tuning import VOCAB


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
