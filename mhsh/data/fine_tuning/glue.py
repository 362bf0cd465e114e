"""GLUE's tasks (Wang et al. 2019, arXiv 1804.07461) and their original files: one table, one
reader, the order of the labels.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from mhsh.data.text_files import read_lines
from mhsh.errors import UserError

MAX_SCORE = 5.0  # STS-B's scores go from 0 to here
# Longer ones are no numbers that a file of examples counts with.
_INDEX = re.compile(r"[0-9]{1,18}")


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """The two files of a task on which GLUE publishes figures, and the file that is handed in for
    the second.
    """

    name: str  # the split's name in TFDS
    labelled: str
    unlabelled: str
    submission: str


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """What must be known of a task to read its examples and to score predictions for it."""

    name: str  # as TFDS calls it
    folder: str  # as GLUE's own download calls it
    texts: tuple[str, ...]  # the columns of the sentence, or of the two
    features: tuple[str, ...]  # the same in TFDS
    label_column: str
    label_names: tuple[str, ...]  # class k is label_names[k]; () for a regression
    written_labels: tuple[str, ...]  # how the files, and those handed in, write class k
    metrics: tuple[str, ...]  # as mhsh.evaluation.glue names them
    evaluation_sets: tuple[EvaluationSet, ...]
    # The columns of files without a header; of several layouts, the longer ones only add columns at
    # the end.
    headerless: tuple[tuple[str, ...], ...] = ()

    @property
    def num_classes(self) -> int:
        """Of the model's outputs: 1 for a regression."""
        return max(1, len(self.label_names))


@dataclasses.dataclass(frozen=True, slots=True)
class GlueExample:
    """One line of a file, or one record of TFDS."""

    index: int  # of the file's column `index`; without one, the position in the file, from 0
    texts: tuple[str, ...]  # one or two, as they stand there
    label: int | float | None  # a class, a score from 0 to MAX_SCORE, or None in a test set


def _dev_and_test(submission: str) -> tuple[EvaluationSet, ...]:
    return (EvaluationSet("validation", "dev.tsv", "test.tsv", submission),)


_SENTENCE = ("sentence",)
_SENTENCES = ("sentence1", "sentence2")
_NUMBERS = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_NLI = ("entailment", "neutral", "contradiction")
_STS_BENCHMARK = ("genre", "file", "year", "old_index", "score", "sentence1", "sentence2")

# QQP's first archive (QQP.zip) has lines that are broken in two; QQP-clean.zip, which GLUE put in
# its place, has none. The diagnostic set (AX) is no task: diagnostic.tsv is read as, and AX.tsv
# handed in like, a test set of MNLI.
GLUE_TASKS: dict[str, GlueTask] = {
    task.name: task
    for task in (
        GlueTask(
            name="cola",
            folder="CoLA",
            texts=_SENTENCE,
            features=_SENTENCE,
            label_column="label",
            label_names=("unacceptable", "acceptable"),
            written_labels=_NUMBERS,
            metrics=("matthews",),
            evaluation_sets=_dev_and_test("CoLA.tsv"),
            headerless=(("source", "label", "mark", "sentence"),),
        ),
        GlueTask(
            name="sst2",
            folder="SST-2",
            texts=_SENTENCE,
            features=_SENTENCE,
            label_column="label",
            label_names=("negative", "positive"),
            written_labels=_NUMBERS,
            metrics=("accuracy",),
            evaluation_sets=_dev_and_test("SST-2.tsv"),
        ),
        GlueTask(
            name="mrpc",
            folder="MRPC",
            texts=("#1 String", "#2 String"),
            features=_SENTENCES,
            label_column="Quality",
            label_names=("not_equivalent", "equivalent"),
            written_labels=_NUMBERS,
            metrics=("f1", "accuracy"),
            evaluation_sets=_dev_and_test("MRPC.tsv"),
        ),
        GlueTask(
            name="stsb",
            folder="STS-B",
            texts=_SENTENCES,
            features=_SENTENCES,
            label_column="score",
            label_names=(),
            written_labels=(),
            metrics=("pearson", "spearman"),
            evaluation_sets=_dev_and_test("STS-B.tsv"),
            # The STS benchmark's own files, where the labels of GLUE's test set are to be had.
            headerless=(_STS_BENCHMARK, (*_STS_BENCHMARK, "source1", "source2")),
        ),
        GlueTask(
            name="qqp",
            folder="QQP",
            texts=("question1", "question2"),
            features=("question1", "question2"),
            label_column="is_duplicate",
            label_names=("not_duplicate", "duplicate"),
            written_labels=_NUMBERS,
            metrics=("f1", "accuracy"),
            evaluation_sets=_dev_and_test("QQP.tsv"),
        ),
        GlueTask(
            name="mnli",
            folder="MNLI",
            texts=_SENTENCES,
            features=("premise", "hypothesis"),
            label_column="gold_label",
            label_names=_NLI,
            written_labels=_NLI,
            metrics=("accuracy",),
            evaluation_sets=(
                EvaluationSet("validation_matched", "dev_matched.tsv", "test_matched.tsv", "MNLI-m.tsv"),
                EvaluationSet("validation_mismatched", "dev_mismatched.tsv", "test_mismatched.tsv", "MNLI-mm.tsv"),
            ),
        ),
        GlueTask(
            name="qnli",
            folder="QNLI",
            texts=("question", "sentence"),
            features=("question", "sentence"),
            label_column="label",
            label_names=_ENTAILMENT,
            written_labels=_ENTAILMENT,
            metrics=("accuracy",),
            evaluation_sets=_dev_and_test("QNLI.tsv"),
        ),
        GlueTask(
            name="rte",
            folder="RTE",
            texts=_SENTENCES,
            features=_SENTENCES,
            label_column="label",
            label_names=_ENTAILMENT,
            written_labels=_ENTAILMENT,
            metrics=("accuracy",),
            evaluation_sets=_dev_and_test("RTE.tsv"),
        ),
        GlueTask(
            name="wnli",
            folder="WNLI",
            texts=_SENTENCES,
            features=_SENTENCES,
            label_column="label",
            label_names=("not_entailment", "entailment"),  # the other way round than in QNLI and RTE
            written_labels=_NUMBERS,
            metrics=("accuracy",),
            evaluation_sets=_dev_and_test("WNLI.tsv"),
        ),
    )
}


def find_task(name: str) -> GlueTask:
    """The task of a name as TFDS or as GLUE's folders write it: "stsb" or "STS-B".

    Raises:
      UserError: there is none.
    """
    task = GLUE_TASKS.get(name.lower().replace("-", ""))
    if task is None:
        raise UserError(f"{name!r} is no task of GLUE; allowed: {', '.join(GLUE_TASKS)}")
    return task


def find_file(task: GlueTask, root: str | Path, file_name: str) -> Path:
    """ROOT/<the task's folder>/FILE_NAME, or the same with .gz.

    Raises:
      UserError: neither is there.
    """
    plain = Path(root) / task.folder / file_name
    for path in (plain, plain.with_name(f"{file_name}.gz")):
        if path.is_file():
            return path
    raise UserError(f"there is neither {plain} nor {plain.name}.gz; put GLUE's original files there, a folder a task")


def check_label_order(task: GlueTask, names: Sequence[str], whose: str) -> None:
    """That class k means the same in other data: `names` are those data's own names of the classes,
    in their order.

    Args:
      names: for example builder.info.features["label"].names of TFDS; empty for a regression.
      whose: the data, as an error shows them.

    Raises:
      UserError: other names, or another order.
    """
    if tuple(names) != task.label_names:
        raise UserError(
            f"{whose} numbers the labels of {task.name} as {', '.join(names) or 'a score'}, GLUE as "
            f"{', '.join(task.label_names) or 'a score'}; class numbers would change their meaning, so take GLUE's original data"
        )


def read_glue(task: GlueTask, path: str | Path) -> tuple[GlueExample, ...]:
    """The examples of an original file (TSV, plain, .gz or .xz, UTF-8), in its order; a test set
    has no labels.

    Quotation marks are text, as in the tasks' own readers: MRPC's are unbalanced. A byte order mark
    is no part of the text.

    Raises:
      UserError: the file cannot be read, is not UTF-8, lacks a column or has no examples; a line
        has more or fewer columns than the header, an unknown label, a score that is no number from
        0 to MAX_SCORE, or an index that was there before.
    """
    lines = read_lines(str(path))
    widths, columns, first = _layout(task, path, lines)
    texts = [columns.index(name) for name in task.texts]
    index = columns.index("index") if "index" in columns else None
    label = columns.index(task.label_column) if task.label_column in columns else None
    parse = _label_parser(task)
    examples: list[GlueExample] = []
    seen: set[int] = set()
    for number, line in enumerate(lines[first:], first + 1):
        try:
            cells = line.split("\t")
            if len(cells) not in widths:
                raise ValueError(f"has {len(cells)} columns instead of {' or '.join(map(str, sorted(widths)))}")
            position = len(examples) if index is None else parse_index(cells[index])
            if position in seen:
                raise ValueError(f"has index {position} a second time")
            seen.add(position)
            value = None if label is None else parse(cells[label])
        except ValueError as error:
            raise UserError(f"{path} line {number} {error}; mend or remove the line, or fetch the file again") from error
        examples.append(GlueExample(position, tuple(cells[text] for text in texts), value))
    if not examples:
        raise UserError(f"{path} has no examples; fetch the file again")
    return tuple(examples)


def _layout(task: GlueTask, path: str | Path, lines: Sequence[str]) -> tuple[set[int], tuple[str, ...], int]:
    """The numbers of columns that lines may have, the columns' names, and how many lines the header
    takes.
    """
    if not lines:
        raise UserError(f"{path} is empty; fetch the file again")
    header = tuple(lines[0].split("\t"))
    missing = [name for name in task.texts if name not in header]
    if not missing:
        return {len(header)}, header, 1
    if task.headerless:
        return {len(layout) for layout in task.headerless}, task.headerless[0], 0
    raise UserError(
        f"{path} line 1 is no header of {task.folder}: there is no column {missing[0]!r}; fetch the original file again, or name "
        "another task"
    )


def parse_index(cell: str) -> int:
    """The number of an example.

    Raises:
      ValueError: what the cell "has".
    """
    if not _INDEX.fullmatch(cell):
        raise ValueError(f"has no index: {cell!r} is not a whole number")
    return int(cell)


def _label_parser(task: GlueTask) -> Callable[[str], int | float]:
    """The function from a cell of the task's files to its class or score; it raises ValueError with
    what the cell "has".
    """
    if not task.label_names:
        return _parse_score
    classes = {written: number for number, written in enumerate(task.written_labels)}

    def parse(cell: str) -> int:
        if cell not in classes:
            raise ValueError(f"has the label {cell!r}, which is none of {', '.join(classes)}")
        return classes[cell]

    return parse


def _parse_score(cell: str) -> float:
    try:
        score = float(cell)
    except ValueError:
        score = float("nan")
    if not 0 <= score <= MAX_SCORE:
        raise ValueError(f"has the score {cell!r}, which is no number from 0 to {MAX_SCORE:g}")
    return score
