"""GLUE's tasks out of the data sets glue/TASK that TFDS has prepared."""

from __future__ import annotations

from mhsh.data.fine_tuning.glue import MAX_SCORE, GlueExample, GlueTask, check_label_order
from mhsh.data.tfds import open_split
from mhsh.errors import UserError

_LABEL, _INDEX = "label", "idx"


def read_prepared_glue(task: GlueTask, version: str, split: str) -> tuple[GlueExample, ...]:
    """The examples of one split, all with labels, in the order of the original file, which TFDS's
    `idx` keeps.

    Args:
      version: of the data set, such as 2.0.0; empty: the newest that is prepared.
      split: train, or the name of an EvaluationSet.

    Raises:
      UserError: the split cannot be opened, lacks a feature, numbers its labels in another way than
        GLUE, or has an example without a label, which TFDS gives -1.
    """
    name = f"glue/{task.name}:{version}:{split}" if version else f"glue/{task.name}:{split}"
    prepared = open_split(name)
    records = prepared.records(*task.features, _LABEL, _INDEX)
    # Scores are plain numbers, without names.
    check_label_order(task, getattr(prepared.features[_LABEL], "names", ()), f"tfds:{name}")
    highest = len(task.label_names) - 1 if task.label_names else MAX_SCORE
    examples: list[GlueExample] = []
    for record in records:
        label, index = record[_LABEL], record[_INDEX]
        if not 0 <= label <= highest:
            raise UserError(
                f"tfds:{name}: the record with idx {index} has the label {label:g}, which is not from 0 to {highest:g} (-1: none, "
                "as in test sets); prepare the data set anew"
            )
        examples.append(GlueExample(index, tuple(record[feature] for feature in task.features), label))
    return tuple(sorted(examples, key=lambda example: example.index))
