"""mhsh finetune: a pre-trained run's model on a task, once for every seed."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Mapping
from typing import Annotated, Any

from cyclopts import Parameter
from etils import epath
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from mhsh.cli.early_stop import report_stop
from mhsh.cli.parser import ConfigFieldsFlag, WorkdirFlag
from mhsh.cli.train import PREDICT_INPUT
from mhsh.config.entries import entry_flags, named_entries
from mhsh.config.fields import parse_value
from mhsh.config.resolve import from_dict, whole_run_as_start
from mhsh.config.schema import TASKS, ClassificationDataConfig, Config, ModelConfig, TranslationDataConfig, to_dict
from mhsh.configs import override
from mhsh.data.glue import find_task
from mhsh.errors import UserError
from mhsh.storage.files import write_atomically
from mhsh.storage.run_folder import WORDPIECE_FILE, RunFolder, recorded_lineage
from mhsh.text import to_json, whole_numbers

EXAMPLES = (
    "mhsh finetune runs/12l12h --config=glue:cola --workdir=runs/cola",
    "mhsh finetune runs/12l12h --config=squad:v2 --seeds=0,1 --workdir=v2",
    "mhsh finetune runs/12l12h --config=glue:rte --rates=5e-5,3e-5 --workdir=rte",
)


def run(
    folder: Annotated[str, Parameter(name="RUN", help="the pre-trained run")],
    /,
    *,
    config: ConfigFieldsFlag,
    workdir: WorkdirFlag,
    seeds: str = "0",
    rates: str | None = None,
    fresh: bool = False,
) -> int:
    """Trains a pre-trained run's model on a task, once for every seed.

    The run of seed K is WORKDIR/seed-K, or with --rates WORKDIR/lr-R/seed-K. Prints the mean and
    deviation of each validation metric, with --rates at the best rate, and writes them to
    summary.json. Finished runs are kept, and a stopped one resumes.

    Args:
      workdir: the folder of the runs, one a seed
      seeds: K,... of heads, dropout, row order and held-out articles
      rates: R,... learning rates; the task's own metric chooses one, by its mean over the seeds
      fresh: take RUN's shape and vocabulary, not its parameters
    """
    seed_numbers = whole_numbers("--seeds=", seeds, least=0)
    configs: dict[str, dict[int, Config]] = {}
    folder_of_runs = epath.Path(workdir)
    for rate, changed in _fields_by_rate(config.fields, rates).items():
        for seed in seed_numbers:
            fields = fine_tuning_fields(RunFolder(folder), changed, seed, fresh)
            config.check_overrides(fields, "mhsh finetune (by RUN, --seeds, --rates or --fresh)")
            configs.setdefault(rate, {})[seed] = _named_as_begun(_run_of(folder_of_runs, rate, seed), from_dict(fields))
    # After the configs are checked: it takes seconds.
    from mhsh.training.loop import DivergedRun, train

    summaries = {}
    for rate, by_seed in configs.items():
        figures: dict[int, dict[str, float]] = {}
        for seed, own in by_seed.items():
            run_folder = _run_of(folder_of_runs, rate, seed)
            _check_one_start(folder_of_runs, configs)
            try:
                stopped_by = train(own, run_folder.path)
            except DivergedRun as error:
                if rate == list(configs)[-1] and not summaries:
                    raise
                print(f"{rate} is left out: {error}")
                break
            if stopped_by is not None:
                return report_stop(stopped_by)
            figures[seed] = _last_validation(run_folder)
        else:
            summaries[rate] = summarise(figures)
    _conclude(folder_of_runs, configs, summaries, None if fresh else folder)
    return 0


def _conclude(
    workdir: epath.Path,
    configs: Mapping[str, Mapping[int, Config]],
    summaries: Mapping[str, Mapping[str, Any]],
    started_from: str | None,
) -> None:
    """Chooses the best rate, writes summary.json, and prints the figures and the next command.
    Raises UserError where no rate has a score.
    """
    scores = {rate: _score(next(iter(configs[rate].values())), summary) for rate, summary in summaries.items()}
    best = max(scores, key=lambda rate: -math.inf if math.isnan(scores[rate]) else scores[rate])
    if best and math.isnan(scores[best]):
        raise UserError(
            f"the score is not a number at any rate of {workdir}, as where all predictions are equal or none is finite; try other "
            "--rates in another --workdir"
        )
    found: dict[str, Any] = {"started_from": started_from, "figures": summaries[best]}
    if best:  # of --rates
        found |= {"best": best, "scores": scores}
        print("Best on the validation data:", best)
    write_atomically(workdir / "summary.json", to_json(found, indent=1) + "\n")
    _print_table(summaries[best])
    seed, own = next(iter(configs[best].items()))
    named = shlex.quote(str(_run_of(workdir, best, seed).path))
    given, files = PREDICT_INPUT[own.model.objective], entry_flags(named_entries(own))
    print(f"next: mhsh predict {named} {given}{files}, or mhsh export {named} --out=DIR{files}")


def _run_of(workdir: epath.Path, rate: str, seed: int) -> RunFolder:
    """The folder of a run; the rate is empty without --rates."""
    return RunFolder(workdir / rate / f"seed-{seed}")


def _lineage_of(run: RunFolder) -> list[dict[str, Any]]:
    """The runs that it started from, the nearest first; empty where it has not begun."""
    return recorded_lineage(run.run_record()) if run.newest_checkpoint() is not None else []


def _named_as_begun(run: RunFolder, config: Config) -> Config:
    """The config, which names the run to start from as the run in the folder does where it started
    from the same: that has been moved since, or is named from another folder. It is the same if it
    has a checkpoint of that step after as many seconds, or was imported from the same weights.
    """
    there = config.train.start_from
    lineage = _lineage_of(run) if there else []
    if not lineage:
        return config
    now, marks = RunFolder(there).lineage(lineage[0]["step"])[0], ("seconds", "tokens", "imported")
    then = [lineage[0].get(name) for name in marks]
    if not any(then) or then != [now[name] for name in marks]:
        return config
    return replace(config, train=replace(config.train, start_from=run.initial_config().train.start_from))


def _check_one_start(workdir: epath.Path, configs: Mapping[str, Mapping[int, Config]]) -> None:
    """Raises UserError where the runs have not started, or would not start now, from one
    checkpoint: their mean would be of several models.
    """
    paths: dict[int | None, epath.Path] = {}
    for rate, by_seed in configs.items():
        for seed, config in by_seed.items():
            run, there = _run_of(workdir, rate, seed), config.train.start_from
            folder = RunFolder(there) if there else None
            begun = [before["step"] for before in _lineage_of(run)[:1] if folder and before.get("folder") == str(folder.path)]
            paths.setdefault(begun[0] if begun else folder.newest_checkpoint() if folder else None, run.path)
    if len(paths) > 1:
        words = " and ".join(f"{path} from step {step}" for step, path in paths.items())
        raise UserError(f"the run to start from has trained on: {words}; fine-tune all seeds in another --workdir")


def _fields_by_rate(fields: Mapping[str, Any], rates: str | None) -> dict[str, Mapping[str, Any]]:
    """The fields at every rate, by the folder of that rate in the workdir."""
    if rates is None:
        return {"": fields}
    path = "optimizer.learning_rate"
    return {f"lr-{rate}": override(fields, [(path, parse_value(path, rate))], "--rates=") for rate in rates.split(",")}


def _score(config: Config, summary: Mapping[str, Mapping[str, Any]]) -> float:
    """The score that chooses a rate: the mean of GLUE's metrics of the task, or SQuAD's F1 at the
    best threshold for no answer.
    """
    if isinstance(config.data, ClassificationDataConfig):
        return statistics.fmean(summary[name]["mean"] for name in find_task(config.data.task).metrics)
    return summary.get("best_f1", summary["f1"])["mean"]


def fine_tuning_fields(folder: RunFolder, fields: Mapping[str, Any], seed: int, fresh: bool) -> dict[str, Any]:
    """The config of one fine-tuning, unchecked: the model and the vocabulary of the run in
    `folder`, all else from `fields`. Raises UserError where the run was not pre-trained on
    WordPiece tokens with an encoder alone, or the config is none of fine-tuning.
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
    if objective not in TASKS:
        raise UserError(
            f"--config has model.objective = {objective!r}; fine-tuning needs 'classification' or 'span', as in "
            "--config=glue:cola (mhsh configs lists the others)"
        )
    complete = merge_encoder(fields, there.model, str(folder.path / WORDPIECE_FILE), there.data.lowercase)
    complete["data"] |= {"seed": seed}
    complete["train"] |= {"seed": seed, "start_from": "" if fresh else whole_run_as_start(str(folder.path)), "keep_moments": False}
    return complete


def merge_encoder(fields: Mapping[str, Any], model: ModelConfig, vocab_path: str, lowercase: bool) -> dict[str, Any]:
    """Adds to the fields of a task those of a pre-trained encoder that they leave open."""
    complete = {section: dict(values) for section, values in fields.items()}
    complete["model"] = to_dict(model) | complete.get("model", {})
    complete["data"] = {**complete.get("data", {}), "vocab_path": vocab_path, "lowercase": lowercase}
    return complete


def summarise(figures: Mapping[int, Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """The mean, the standard deviation (None for a single seed, nan where a value is) and the
    values by seed of every figure.
    """
    summary = {}
    for name in next(iter(figures.values())):
        by_seed = {str(seed): row[name] for seed, row in figures.items()}
        values = list(by_seed.values())
        deviation = None if len(values) == 1 else statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan
        summary[name] = {"mean": statistics.fmean(values), "deviation": deviation, "by_seed": by_seed}
    return summary


def _last_validation(folder: RunFolder) -> dict[str, float]:
    """The figures of the last validation row, without what it shares with a training row."""
    metrics, others = folder.read_metrics(), ("step", "split", "tokens", "flops", "seconds", "loss_parts", "batch")
    names = [name for name in metrics.keys("validation") if name not in others]
    return {name: float(metrics.numbers("validation", name)[-1]) for name in names}


def _print_table(summary: Mapping[str, Mapping[str, Any]]) -> None:
    seeds = next(iter(summary.values()))["by_seed"]
    table = Table("figure", "mean", "deviation", *(f"seed {seed}" for seed in seeds))
    for name, values in summary.items():
        numbers = (values["mean"], values["deviation"], *values["by_seed"].values())
        table.add_row(name, *("-" if number is None else f"{number:.4f}" for number in numbers))
    Console().print(table)
