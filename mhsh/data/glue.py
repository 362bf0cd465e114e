"""GLUE (Wang et al. 2019, arXiv 1804.07461): tasks, files and predictions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

from etils import epath

from mhsh.data.text_files import read_lines
from mhsh.errors import UserError
from mhsh.storage.files import expand_user, write_new
from mhsh.storage.questions import is_file

MAX_SCORE = 5.0  # of STS-B, whose lowest score is 0
_TSV = "tsv:"


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """The reading of a task's examples, and the scoring and writing of its predictions."""

    name: str
    folder: str  # in GLUE's own download
    texts: tuple[str, ...]  # the columns of the one or two sentences
    label_names: tuple[str, ...]  # class k is label_names[k]; () for a regression
    _: dataclasses.KW_ONLY
    label_column: str = "label"
    file_labels: tuple[str, ...] = ("0", "1")  # class k in files and submissions
    metrics: tuple[str, ...] = ("accuracy",)  # functions of mhsh.evaluation.glue
    # The evaluation sets on which GLUE publishes results: the name, the file with labels.
    evaluation_files: tuple[tuple[str, str], ...] = (("validation", "dev.tsv"),)
    headerless: tuple[str, ...] = ()  # the columns of files without a header

    @property
    def num_classes(self) -> int:
        """The number of the model's outputs: 1 for a regression."""
        return max(1, len(self.label_names))


@dataclasses.dataclass(frozen=True, slots=True)
class GlueExample:
    """One line of a file."""

    index: int  # from the column `index`, or else the position in the file, from 0
    texts: tuple[str, ...]  # one or two, unchanged
    label: int | float | None  # a class, a score from 0 to MAX_SCORE, or None in a test set


_SENTENCES = ("sentence1", "sentence2")
_ENTAILMENT = ("entailment", "not_entailment")
_NLI = ("entailment", "neutral", "contradiction")
_F1 = ("f1", "accuracy")

# QQP's first archive (QQP.zip) has broken lines; GLUE replaced it by QQP-clean.zip. The diagnostic
# set (AX) is read as a test set of MNLI, and predictions for it are written as one.
_TASKS = (
    GlueTask(
        "cola",
        "CoLA",
        ("sentence",),
        ("unacceptable", "acceptable"),
        metrics=("matthews",),
        headerless=("source", "label", "mark", "sentence"),
    ),
    GlueTask("sst2", "SST-2", ("sentence",), ("negative", "positive")),
    GlueTask("mrpc", "MRPC", ("#1 String", "#2 String"), ("not_equivalent", "equivalent"), label_column="Quality", metrics=_F1),
    GlueTask("stsb", "STS-B", _SENTENCES, (), label_column="score", file_labels=(), metrics=("pearson", "spearman")),
    GlueTask("qqp", "QQP", ("question1", "question2"), ("not_duplicate", "duplicate"), label_column="is_duplicate", metrics=_F1),
    GlueTask(
        "mnli",
        "MNLI",
        _SENTENCES,
        _NLI,
        label_column="gold_label",
        file_labels=_NLI,
        evaluation_files=(("validation_matched", "dev_matched.tsv"), ("validation_mismatched", "dev_mismatched.tsv")),
    ),
    GlueTask("qnli", "QNLI", ("question", "sentence"), _ENTAILMENT, file_labels=_ENTAILMENT),
    GlueTask("rte", "RTE", _SENTENCES, _ENTAILMENT, file_labels=_ENTAILMENT),
    # The classes of WNLI are in the opposite order to those of QNLI and RTE.
    GlueTask("wnli", "WNLI", _SENTENCES, _ENTAILMENT[::-1]),
)
GLUE_TASKS = {task.name: task for task in _TASKS}


def find_task(name: str) -> GlueTask:
    """The task of a name or of a folder of GLUE: "stsb" or "STS-B"."""
    task = GLUE_TASKS.get(name.lower().replace("-", ""))
    if task is None:
        raise UserError(f"{name!r} is not a task of GLUE; allowed: {', '.join(GLUE_TASKS)}")
    return task


def read_splits(task: GlueTask, source: str) -> tuple[tuple[GlueExample, ...], dict[str, tuple[GlueExample, ...]]]:
    """The training examples and those of every evaluation set by name, with labels, of tsv:DIR:
    GLUE's original files, in a folder a task.
    """
    if not source.startswith(_TSV):
        raise UserError(f"data.source = {source!r}; allowed with model.objective = 'classification': tsv:DIR")
    files = {"train": "train.tsv", **dict(task.evaluation_files)}
    paths = {name: find_file(task, source.removeprefix(_TSV), file_name) for name, file_name in files.items()}
    splits = {name: read_glue(task, path) for name, path in paths.items()}
    for name, path in paths.items():
        if splits[name][0].label is None:
            raise UserError(f"{path} has no column {task.label_column!r}; give the file with labels")
    return splits.pop("train"), splits


def find_file(task: GlueTask, root: epath.PathLike, file_name: str) -> epath.Path:
    """ROOT/<the task's folder>/FILE_NAME, or the same with .gz."""
    plain = expand_user(root) / task.folder / file_name
    for path in (plain, plain.with_name(f"{file_name}.gz")):
        if is_file(path):
            return path
    raise UserError(f"there is neither {plain} nor {plain.name}.gz; put GLUE's original files there, one folder per task")


def read_glue(task: GlueTask, path: epath.PathLike) -> tuple[GlueExample, ...]:
    """The examples of an original file (plain or compressed), in order; test sets have no labels.

    Quotation marks are text: those of MRPC are unbalanced. Raises UserError where the file cannot
    be read or lacks a column, or a line (which is named) is malformed.
    """
    lines = read_lines(str(path))
    if not lines:
        raise UserError(f"{path} is empty; fetch the file again")
    columns, first = tuple(lines[0].split("\t")), 1
    missing = [name for name in task.texts if name not in columns]
    if missing and task.headerless:
        columns, first = task.headerless, 0
    elif missing:
        raise UserError(
            f"{path} line 1 is not a header of {task.folder}: {missing[0]!r} is missing; fetch the original file again, or "
            "name another task"
        )
    texts = [columns.index(name) for name in task.texts]
    index = columns.index("index") if "index" in columns else None
    label = columns.index(task.label_column) if task.label_column in columns else None
    examples: list[GlueExample] = []
    seen: set[int] = set()
    for number, line in enumerate(lines[first:], first + 1):
        try:
            cells = line.split("\t")
            if len(cells) != len(columns):
                raise ValueError(f"has {len(cells)} columns instead of {len(columns)}")
            position = len(examples) if index is None else _parse_index(cells[index])
            if position in seen:
                raise ValueError(f"has index {position} a second time")
            seen.add(position)
            value = None if label is None else _parse_label(task, cells[label])
        except ValueError as error:
            raise UserError(f"{path} line {number} {error}; correct or remove the line, or fetch the file again") from error
        examples.append(GlueExample(position, tuple(cells[text] for text in texts), value))
    if not examples:
        raise UserError(f"{path} has no examples; fetch the file again")
    return tuple(examples)


def _parse_index(cell: str) -> int:
    if not cell.isdecimal():
        raise ValueError(f"has no index: {cell!r} is not a whole number")
    return int(cell)


def _parse_label(task: GlueTask, cell: str) -> int | float:
    """The class or the score in a cell; its ValueError says what the line "has"."""
    if task.label_names:
        if cell not in task.file_labels:
            raise ValueError(f"has the label {cell!r}, which is none of {', '.join(task.file_labels)}")
        return task.file_labels.index(cell)
    try:
        score = float(cell)
    except ValueError:
        score = math.nan
    if not 0 <= score <= MAX_SCORE:
        raise ValueError(f"has the score {cell!r}, which is not a number from 0 to {MAX_SCORE:g}")
    return score


def write_submission(task: GlueTask, path: str | Path, indices: Sequence[int], predictions: Sequence[int | float]) -> None:
    """Writes a new file that GLUE's server takes, with scores clipped to 0 to MAX_SCORE. Raises
    UserError where a score is not finite, or the file exists or cannot be written.
    """
    lines = [f"{index}\t{_format_prediction(task, index, value)}" for index, value in zip(indices, predictions, strict=True)]
    write_new(path, "\n".join(["index\tprediction", *lines, ""]))


def _format_prediction(task: GlueTask, index: int, value: int | float) -> str:
    if not task.label_names:
        if not math.isfinite(value):
            raise UserError(f"the prediction for example {index} of {task.name} is {value}; find out why")
        return repr(min(max(float(value), 0.0), MAX_SCORE))
    if value not in range(task.num_classes):
        raise ValueError(f"{value} is not a class of {task.name}")
    return task.file_labels[int(value)]
