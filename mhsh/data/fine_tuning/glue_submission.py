"""Predictions in the form in which GLUE takes them: `index<TAB>prediction`, a header, and a line an
example.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from mhsh.data.fine_tuning.glue import MAX_SCORE, GlueExample, GlueTask, parse_index
from mhsh.data.text_files import read_lines
from mhsh.errors import UserError
from mhsh.files import write_new

_HEADER = "index\tprediction"


def read_submission(task: GlueTask, path: str | Path, examples: Sequence[GlueExample]) -> tuple[int | float, ...]:
    """A class or a score for every example; a class may be written by its name or by its number.

    Raises:
      UserError: the file cannot be read or has no such header, a prediction is none of the task's,
        or the indices are not those of the examples in their order.
    """
    lines = read_lines(str(path))
    if not lines or lines[0] != _HEADER:
        raise UserError(f"{path} line 1 is not the header index<TAB>prediction; write GLUE's form of predictions")
    if len(lines) - 1 != len(examples):
        raise UserError(f"{path} has {len(lines) - 1} predictions for {len(examples)} examples; give one for each, in their order")
    predictions: list[int | float] = []
    for number, (line, example) in enumerate(zip(lines[1:], examples, strict=True), 2):
        try:
            cells = line.split("\t")
            if len(cells) != 2:
                raise ValueError(f"has {len(cells)} columns instead of 2")
            index = parse_index(cells[0])
            if index != example.index:
                raise ValueError(f"has index {index} where the example with index {example.index} stands")
            predictions.append(_parse_prediction(task, cells[1]))
        except ValueError as error:
            raise UserError(f"{path} line {number} {error}; write the predictions of these examples, in their order") from error
    return tuple(predictions)


def write_submission(task: GlueTask, path: str | Path, indices: Sequence[int], predictions: Sequence[int | float]) -> None:
    """Writes a new file that GLUE's server, and `read_submission`, take.

    A score outside of 0 to MAX_SCORE, which a regression may give and no pair of sentences can
    have, is written as the nearer of the two.

    Raises:
      UserError: a score is not finite, or the file exists or cannot be written.
      ValueError: a class that the task does not have, or not as many predictions as indices.
    """
    rows = [f"{index}\t{_written(task, index, value)}" for index, value in zip(indices, predictions, strict=True)]
    write_new(path, "\n".join([_HEADER, *rows, ""]))


def _parse_prediction(task: GlueTask, cell: str) -> int | float:
    if not task.label_names:
        try:
            score = float(cell)
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise ValueError(f"has the prediction {cell!r}, which is no finite number")
        return score
    for names in (task.label_names, [str(number) for number in range(task.num_classes)]):
        if cell in names:
            return names.index(cell)
    raise ValueError(f"has the prediction {cell!r}, which is none of {', '.join(task.label_names)} and no number of theirs")


def _written(task: GlueTask, index: int, value: int | float) -> str:
    if not task.label_names:
        if not math.isfinite(value):
            raise UserError(f"the prediction for example {index} of {task.name} is {value}; look why it is not finite")
        return repr(min(max(float(value), 0.0), MAX_SCORE))
    if value not in range(task.num_classes):
        raise ValueError(f"{value} is no class of {task.name}")
    return task.written_labels[int(value)]
