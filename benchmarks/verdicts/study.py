"""The study's verdicts computed again, from the losses of its runs that docs/study keeps.

  python -m benchmarks.verdicts.study docs/study          # prints docs/study/changed.csv
  python -m benchmarks.verdicts.study docs/study --page   # writes docs/study/index.md anew, too

docs/study/runs.csv has a row for every run that ended: its stage and name, whether it left the
unigram plateau, its last validation loss (nats per predicted token), its tokens and its device
seconds. docs/study/before.csv has the verdicts of the earlier rules. Sweep folders are made of the
rows: one validation row a run, and in run.json the state and the parameter counts, which follow
from the config. Curves, fingerprints of the data, BLEU by seed and the machine are not kept.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import functools
import io
import math
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.experiments.study import publish, stage_words
from benchmarks.experiments.study_page import write_page
from mhsh.config.schema import Config, ModelConfig
from mhsh.configs import parse_fields, take_changes
from mhsh.models.costs import parameter_counts, parameter_shapes, step_flops
from mhsh.storage.run_folder import RunFolder
from mhsh.storage.run_record import FINISHED
from mhsh.sweep.axes import cells_of, parse_axes
from mhsh.sweep.folder import Plan, SweepFolder
from mhsh.training.optimizer import count_decayed
from mhsh.verdict.decision import UNDECIDED, margin_verdict
from mhsh.verdict.estimate import Estimate, judge
from mhsh.verdict.experiment import load_experiment
from mhsh.verdict.findings import HIGHER, LEVEL, LOWER, UNTRAINED, Change, Comparison, Finding, compare, judge_page
from mhsh.verdict.treatment import treatment_of
from mhsh.verdict.tuning import tune

CHOOSING_SEEDS = 2
# What multi30k needs a name of; nothing is read.
SOURCES = ("--config.data.source=text:train.en,train.de", "--config.data.validation_source=text:val.en,val.de")
# What trained the runs, which the page does not claim to be equal.
NOT_KEPT = {"code": {"0": "not kept"}, "numerics": {"0": {"product_bits": "not kept"}}}
# The verdicts of the earlier rules in the words of the new ones.
NOW = {"lower": LOWER, "higher": HIGHER, "no significant difference": LEVEL}

Rows = Sequence[Mapping[str, str]]


def main() -> None:
    """Prints which verdicts changed, and why, as CSV; with --page also writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="docs/study")
    parser.add_argument("--page", action="store_true", help="write its index.md and pictures")
    arguments = parser.parse_args()
    runs = list(csv.DictReader((arguments.folder / "runs.csv").read_text(encoding="utf-8").splitlines()))
    before = list(csv.DictReader((arguments.folder / "before.csv").read_text(encoding="utf-8").splitlines()))
    with tempfile.TemporaryDirectory() as temporary:
        sweeps, published = Path(temporary) / "sweeps", Path(temporary) / "published"
        for stage in dict.fromkeys(row["stage"] for row in runs):
            plant(sweeps / stage, stage, [row for row in runs if row["stage"] == stage])
        csv.writer(sys.stdout, lineterminator="\n").writerows(changed_verdicts(sweeps, before))
        if arguments.page:
            with contextlib.redirect_stdout(io.StringIO()):
                parts = list(publish(sweeps, published))
            for part in parts:
                text = part / "report.md"
                text.write_text(_drop_cautions(text.read_text(encoding="utf-8")), encoding="utf-8")
            write_page(published, arguments.folder)


def _drop_cautions(report: str) -> str:
    """The report without its cautions, which take more than is kept of the runs."""
    groups, *others = re.split(r"(?m)(?=^.*(?:not tested|Every run):$)", report)
    return re.sub(r"(?m)^(\|.*\|)[^|]*\|$", r"\1", groups) + "".join(others) if "| caution |" in groups else report


def plant(path: Path, stage: str, rows: Rows) -> None:
    """Writes the sweep folder of a stage, with a run folder for each row."""
    config, words, flags = stage_words(stage)
    changes, _ = take_changes("config", [*flags, *(SOURCES if stage == "multi30k" else ())])
    fields = parse_fields("config", config, changes)
    assert fields is not None
    axes = parse_axes(words, fields)
    cells = cells_of(axes, fields, lambda config: {"parameters": 0, "tokens": 0, "flops": 0})
    folder = SweepFolder(path)
    folder.open_for(Plan(axes, cells))
    configs = {cell.name: cell.config for cell in cells}
    for row in rows:
        _plant_run(folder.run_folder(row["run"]).path, configs[row["run"]], row)


def _plant_run(path: object, config: Config, row: Mapping[str, str]) -> None:
    folder, loss = RunFolder.open_for_training(str(path), config), float(row["loss"])
    # The entropy itself is not kept: a run on the plateau gets one at its loss, others none.
    data = {"fingerprint": "not kept"} | ({"unigram_entropy": loss} if row["outcome"] == "plateau" else {})
    folder.write_run({"status": FINISHED, "data": data, "remat_policy": "none", **NOT_KEPT, **_sizes(config.model)})
    steps = config.train.num_steps
    spent = {"tokens": int(row["tokens"]), "flops": steps * step_flops(config), "seconds": float(row["seconds"])}
    folder.append_metrics([{"step": steps, "split": "validation", **spent, "loss": loss, "batch": "not kept"}])


@functools.cache
def _sizes(model: ModelConfig) -> dict[str, Any]:
    return {
        "parameters": parameter_counts(model),
        "weight_decayed_parameters": count_decayed(model.residual, parameter_shapes(model)),
    }


def changed_verdicts(workdir: Path, before: Rows) -> Iterator[tuple[str, str, str, str]]:
    """The verdicts that the earlier rules gave otherwise, and why, below the names of the columns.

    `what` is the first swept value (heads a layer, or layers), or what changes between two stages.
    """
    yield "part", "what", "verdict", "why"
    for part in dict.fromkeys(row["part"] for row in before):
        rows = {row["what"]: row for row in before if row["part"] == part}
        named = [part] if (workdir / part).exists() else _stages_of(rows)
        comparisons, changes = _judge_sweeps([workdir / stage for stage in named])
        if len(named) == 1:
            found = dict(_findings(comparisons[0]))
        else:
            found = {f"{each.relation.split(',')[0]}: {each.first} to {each.other}": _change(each.estimate) for each in changes}
        for what, row in rows.items():
            verdict, why = found[what]
            if NOW[row["verdict"]] != verdict:
                yield part, what, verdict, why


def _stages_of(rows: Mapping[str, object]) -> list[str]:
    pairs = [what.split(": ")[1].split(" to ") for what in rows]
    return list(dict.fromkeys(stage for pair in pairs for stage in pair))


def _judge_sweeps(sweeps: Sequence[Path]) -> tuple[list[Comparison], list[Change]]:
    experiment = load_experiment(sweeps)
    treatment = treatment_of(experiment.axes, None)
    comparisons = []
    for words, section in experiment.sections().items():
        has_rates = any(axis.path == "optimizer.learning_rate" for axis in section.axes)
        tuned = tune(section, "lr", CHOOSING_SEEDS) if has_rates else section
        comparisons.append(compare(tuned, treatment=treatment, section=words))
    return judge_page(comparisons)[:2]


def _findings(comparison: Comparison) -> Iterator[tuple[str, tuple[str, str]]]:
    """The verdict on each group and its reason, by the value on the first axis of the sweep."""
    axis = comparison.experiment.axes[0].path
    for place, finding in enumerate(comparison.findings):
        if finding is not None:
            yield str(finding.group.settings[axis]), (finding.verdict, _why(comparison, place, finding))


def _why(comparison: Comparison, place: int, finding: Finding) -> str:
    """Why the difference is not significant, or is not tested."""
    base = comparison.experiment.groups[comparison.baseline]
    if finding.verdict == UNTRAINED:
        counts = [
            f"{len(group.trained_members)} of {len(group.trained_members) + len(group.untrained_members)}"
            for group in (finding.group, base)
        ]
        return f"{counts[0]} runs trained, of the baseline {counts[1]}: no mean over two kinds of run"
    difference, doubt = finding.difference, comparison.doubt(place)
    if difference is None:
        return "no loss to compare"
    if doubt.open_below or doubt.open_above:
        groups = (finding.group, base)
        edge = next(group for group in groups if math.isinf(group.hidden_gain[1]))
        return f"{edge.name}'s best rate, {edge.choice and edge.choice.optimum and edge.choice.optimum.rate:g}, is at the edge"
    if margin_verdict(judge(difference, doubt=doubt), 0.0) != UNDECIDED:
        return "one family of intervals on the page"
    return "the spread of the seeds" if margin_verdict(judge(difference), 0.0) == UNDECIDED else "what the grid of rates may hide"


def _change(difference: Estimate) -> tuple[str, str]:
    verdict = LEVEL if not difference.is_significant else LOWER if difference.mean < 0 else HIGHER
    return verdict, "a wider interval, and what the grids hide"


if __name__ == "__main__":
    main()
