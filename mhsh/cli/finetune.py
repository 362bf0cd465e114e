"""mhsh finetune: a pre-trained run's model on a task, once for every seed, and a table of the
results.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from mhsh.cli.early_stop import interrupted
from mhsh.cli.flags import FieldsFlag
from mhsh.config.resolve import from_dict
from mhsh.config.schema import Config, TranslationDataConfig, to_dict
from mhsh.errors import UserError
from mhsh.run_folder import WORDPIECE_FILE, RunFolder

SUMMARY_FILE = "summary.json"


EXAMPLES = (
    "mhsh finetune runs/12l12h --config=glue:cola --workdir=runs/cola",
    "mhsh finetune runs/12l12h --config=squad:v2 --seeds=0,1 --workdir=v2",
)


def run(
    folder: Annotated[str, Parameter(name="RUN", help="the pre-trained run")],
    /,
    *,
    config: FieldsFlag,
    workdir: str,
    seeds: str = "0",
    fresh: bool = False,
) -> int:
    """Trains a pre-trained run's model on a task, once for every seed.

    The run of seed K is WORKDIR/seed-K. Mean and deviation of each validation metric are printed
    and written to summary.json. Runs that are finished are not trained again, and one that was
    stopped goes on.

    Args:
      workdir: where a run folder a seed goes
      seeds: K,... of heads, dropout and row order
      fresh: take RUN's shape and vocabulary, not its parameters

    Raises:
      UserError: the run cannot be fine-tuned, or whatever is wrong with the config or its data.
    """
    configs = {seed: fine_tuning_config(RunFolder(folder), config, seed, fresh) for seed in _numbers(seeds)}
    # After the configs are checked: it takes seconds.
    from mhsh.training.loop import train

    figures: dict[int, dict[str, float]] = {}
    for seed, own in configs.items():
        run_folder = RunFolder(Path(workdir) / f"seed-{seed}")
        stopped_by = train(own, run_folder.path)
        if stopped_by is not None:
            return interrupted(stopped_by)
        figures[seed] = _last_validation(run_folder)
    summary = summarise(figures)
    path = Path(workdir) / SUMMARY_FILE
    path.write_text(json.dumps({"started_from": None if fresh else folder, "figures": summary}, indent=1) + "\n", encoding="utf-8")
    _print_table(figures, summary)
    return 0


def fine_tuning_config(folder: RunFolder, fields: Mapping[str, Any], seed: int, fresh: bool) -> Config:
    """The config of one fine-tuning: the model and the vocabulary of the run in `folder`, all else
    from `fields`.

    Raises:
      UserError: the run was not pre-trained on WordPiece tokens with an encoder alone, or the
        config is wrong.
    """
    there = folder.read_config()
    if isinstance(there.data, TranslationDataConfig) or there.data.tokenizer != "wordpiece":
        raise UserError(
            f"{folder.path} is a run of model.objective = {there.model.objective!r} on {there.data.tokenizer}; fine-tuning needs "
            "an encoder that was trained on WordPiece tokens"
        )
    if there.model.objective == "clm":
        raise UserError(
            f"{folder.path} is a causal language model (model.objective = 'clm'), which never saw what follows a token; "
            "fine-tuning reads a row in both directions: give a run of model.objective = 'mlm'"
        )
    objective = fields.get("model", {}).get("objective")
    if objective not in ("classification", "span"):
        raise UserError(
            f"--config has model.objective = {objective!r}; fine-tuning needs 'classification' or 'span', as in "
            "--config=glue:cola (mhsh configs lists the others)"
        )
    complete = {section: dict(values) for section, values in fields.items()}
    complete["model"] = to_dict(there.model) | complete["model"]
    own = {"vocab_path": str(folder.path / WORDPIECE_FILE), "lowercase": there.data.lowercase, "seed": seed}
    complete["data"] |= own
    complete["train"] |= {"seed": seed, "start_from": "" if fresh else str(folder.path), "keep_moments": False}
    return from_dict(complete)


def summarise(figures: Mapping[int, Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """By figure: its mean, its standard deviation (None for a single seed), and its value by
    seed.
    """
    names = next(iter(figures.values()))
    summary = {}
    for name in names:
        values = [each[name] for each in figures.values()]
        deviation = statistics.stdev(values) if len(values) > 1 else None
        by_seed = {str(seed): each[name] for seed, each in figures.items()}
        summary[name] = {"mean": statistics.fmean(values), "deviation": deviation, "by_seed": by_seed}
    return summary


def _numbers(seeds: str) -> list[int]:
    parts = seeds.split(",")
    if not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise UserError(f"--seeds={seeds} must be whole numbers with commas between, each once, such as 0,1,2")
    return [int(part) for part in parts]


def _last_validation(folder: RunFolder) -> dict[str, float]:
    """The figures of the last validation row, without what says how it was made."""
    rows = [row for row in folder.read_metrics().rows if row["split"] == "validation"]
    if not rows:
        raise UserError(f"{folder.path} is finished and has no validation figures in metrics.jsonl; put it back from a copy")
    shared = ("step", "split", "tokens", "flops", "seconds", "batch", "loss_parts")
    return {name: value for name, value in rows[-1].items() if name not in shared}


def _print_table(figures: Mapping[int, Mapping[str, float]], summary: Mapping[str, Mapping[str, Any]]) -> None:
    seeds: Sequence[int] = list(figures)
    table = Table("figure", "mean", "deviation", *(f"seed {seed}" for seed in seeds))
    for name, values in summary.items():
        deviation = values["deviation"]
        row = [figures[seed][name] for seed in seeds]
        table.add_row(
            name, f"{values['mean']:.4f}", "-" if deviation is None else f"{deviation:.4f}", *(f"{value:.4f}" for value in row)
        )
    Console().print(table)
