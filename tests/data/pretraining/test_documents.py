"""Each document once, on a side that hangs on its content and the seed alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from mhsh.data.pretraining.documents import DocumentCounts, check_split, split_documents
from mhsh.errors import UserError


def parts(documents: list[str], data: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"train": [], "validation": []}
    for split, document in split_documents(documents, data, DocumentCounts()):
        found[split].append(document)
    return found


def test_duplicates_and_empty_documents_are_left_out_and_counted(make_config: Any) -> None:
    counts = DocumentCounts()
    texts = ["a", "b", "", "a", "A", "a\n", "", "b"]
    kept = [text for _, text in split_documents(texts, make_config().data, counts)]
    assert kept == ["a", "b", "A", "a\n"]
    assert counts == DocumentCounts(read=8, empty=2, duplicates=2)


def test_the_side_hangs_on_content_and_seed_alone(make_config: Any, english: list[str]) -> None:
    data = make_config().data
    found = parts(english, data)
    assert [document for document in english if document in found["train"]] == found["train"]
    turned = parts(english[::-1], data)
    assert {split: set(texts) for split, texts in turned.items()} == {split: set(texts) for split, texts in found.items()}
    # A document alone is on the side it is on among others.
    for split, texts in found.items():
        assert all(parts([text], data)[split] == [text] for text in texts)
    assert parts(english, replace(data, seed=1)) != found


@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.25, 0.9])
def test_the_share_held_out(make_config: Any, fraction: float) -> None:
    count = 20_000
    found = parts([f"document {number}" for number in range(count)], make_config(data__validation_fraction=fraction).data)
    # Fair coins; five standard deviations.
    assert abs(len(found["validation"]) / count - fraction) <= 5 * np.sqrt(fraction * (1 - fraction) / count)


def test_more_is_held_out_of_the_same(make_config: Any, english: list[str]) -> None:
    few, many = (set(parts(english, make_config(data__validation_fraction=fraction).data)["validation"]) for fraction in (0.1, 0.4))
    assert few < many


@pytest.mark.parametrize(("next_sentence", "least"), [(False, 1), (True, 2)])
def test_either_side_needs_documents(make_config: Any, next_sentence: bool, least: int) -> None:
    config = make_config(model__next_sentence=next_sentence)
    check_split({"train": least, "validation": least}, config.model, config.data, DocumentCounts())
    for split, other in (("train", "validation"), ("validation", "train")):
        with pytest.raises(
            UserError, match=rf"leaves {least - 1} documents for {split}, which needs {least} \(7 read, 1 empty, 2 dup"
        ):
            check_split({split: least - 1, other: 9}, config.model, config.data, DocumentCounts(7, 1, 2))
