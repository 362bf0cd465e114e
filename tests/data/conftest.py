"""Small configs, made-up English and TFDS's folder for the tests of mhsh/data."""

from __future__ import annotations

import contextlib
import importlib.util
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mhsh.config.resolve import from_dict
from mhsh.config.schema import Config
from tests.conftest import load_fields

CONFIG = {
    # What the data floor does not read is as in the shipped tiny config.
    **load_fields("bert", "2l8h"),
    "model": load_fields("bert", "2l8h")["model"] | dict(heads_per_layer=0, vocab_size=400, max_positions=128),
    "data": dict(
        source="stdlib",
        tokenizer="wordpiece",
        vocab_path="",
        lowercase=True,
        sequence_length=48,
        max_predictions=8,
        mask_fraction=0.15,
        whole_word_masking=False,
        validation_fraction=0.2,
        seed=0,
    ),
}
CLM = dict(model__objective="clm", model__next_sentence=False, model__num_token_types=0, data__tokenizer="bytes")

MakeConfig = Callable[..., Config]
needs_tensorflow = pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="the tfds extra is not installed")


@contextlib.contextmanager
def tfds_folder(folder: Path) -> Iterator[None]:
    """Inside the `with`, TFDS looks for data sets in `folder`, as if TFDS_DATA_DIR named it."""
    from tensorflow_datasets.core import constants  # takes a second

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "DATA_DIR", str(folder))
        yield


@pytest.fixture(scope="session")
def make_config() -> MakeConfig:
    """Builds CONFIG with some fields replaced: make_config(model__vocab_size=300)."""

    def make(**fields: Any) -> Config:
        sections: dict[str, dict[str, Any]] = {section: dict(values) for section, values in CONFIG.items()}
        for name, value in fields.items():
            section, field = name.split("__")
            assert field in sections[section]
            sections[section][field] = value
        return from_dict(sections)

    return make


@pytest.fixture(scope="session")
def clm_fields() -> dict[str, Any]:
    """The fields of a causal model over bytes."""
    return dict(CLM)


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
