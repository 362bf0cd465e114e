"""mhsh score: predictions of any system against references, one command a task."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from mhsh.cli.parser import add_command, examples
from mhsh.cli.scores import score_glue, score_squad, score_translation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A command for each task."""
    parser.epilog = examples(
        "mhsh score translation --hypotheses=translated.txt --references=test.de",
        "mhsh score glue --task=cola --labels=dev.tsv --predictions=CoLA.tsv",
    )
    tasks = parser.add_subparsers(metavar="TASK", required=True)
    for name, help_text, module in (
        ("translation", "BLEU and chrF of lines, by sacreBLEU", score_translation),
        ("glue", "the metrics of one GLUE task, as JSON", score_glue),
        ("squad", "exact match and F1 of SQuAD 1.1 or 2.0, as JSON", score_squad),
    ):
        command = add_command(tasks, name, help_text)
        command.set_defaults(task=module.run)
        module.add_arguments(command)


def run(task: Callable[..., int], **options: Any) -> int:
    """Runs the task's command."""
    return task(**options)
