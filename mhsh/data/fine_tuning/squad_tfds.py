"""SQuAD's questions out of the data sets squad/v1.1 and squad/v2.0, or others with their features,
that TFDS has prepared.
"""

from __future__ import annotations

from typing import Any

from mhsh.data.fine_tuning.squad import SquadData, parse_squad
from mhsh.data.tfds import open_split

# Of both versions. 2.0 also says whether a question is impossible; what is plausible instead is not
# read.
_FEATURES = ("title", "context", "id", "question", "answers")
_IS_IMPOSSIBLE = "is_impossible"


def read_prepared_squad(name: str) -> SquadData:
    """The questions of one split, in the order of its files, which TFDS shuffles.

    Args:
      name: DATASET[:SPLIT], such as squad/v1.1, squad/v2.0:validation or
        squad/v2.0:3.0.0:train[:10%]; SPLIT is train where it is not given.

    Raises:
      UserError: the split cannot be opened, lacks a feature, or whatever `parse_squad` finds wrong
        with it.
    """
    split = open_split(name)
    features = [*_FEATURES, _IS_IMPOSSIBLE] if _IS_IMPOSSIBLE in split.features else _FEATURES
    articles = [_article(record) for record in split.records(*features)]
    return parse_squad(f"tfds:{name}", {"data": articles})


def _article(record: dict[str, Any]) -> dict[str, Any]:
    """A record in SQuAD's JSON form: an article of one question."""
    answers = record.pop("answers")
    if isinstance(answers, dict):
        # A sequence of objects is in TFDS an object of sequences.
        answers = [dict(zip(answers, values, strict=True)) for values in zip(*answers.values(), strict=True)]
    paragraph = {"context": record.pop("context"), "qas": [record | {"answers": answers}]}
    return {"title": record.pop("title"), "paragraphs": [paragraph]}
