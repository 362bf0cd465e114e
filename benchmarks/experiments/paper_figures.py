"""The costs of the experiments of the paper, by `mhsh plan`, and their results, as a table."""

from __future__ import annotations

import contextlib
import functools
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mhsh.config.schema import Config
from mhsh.configs import get, load_fields
from mhsh.configs.glue import VARIANTS
from mhsh.models.costs import run_cost
from mhsh.planning.roofline import CHIPS, step_time

BASE, LARGE, PAIR = ("12l12h", "144l1h"), ("24l16h", "384l1h"), ("6l8h", "48l1h")
GROUPINGS = ("6l8h", "12l4h", "24l2h", "48l1h")
BERTS = BASE + LARGE
RATES, SEEDS = 4, 3

# By experiment, the shapes that are priced, each with its trainings.
SHAPES = {
    "example": [],
    "wmt": [[f"translation:{shape}"] for shape in PAIR],
    "iwslt": [["translation:iwslt_6l4h"] * 5, ["translation:iwslt_24l1h"] * 5],
    "bert_base": [[f"bert:{shape}-phase1", f"bert:{shape}-phase2"] for shape in BASE],
    "bert_large": [[f"bert:{shape}-phase1", f"bert:{shape}-phase2"] for shape in LARGE],
    "stability": [["translation:48l1h"], ["bert:144l1h-phase1"], ["bert:384l1h-phase1"]],
    "glue": [[f"glue:cola@bert:{shape}"] for shape in BERTS],
    "squad_v1": [[f"squad:v1@bert:{shape}"] for shape in BERTS],
    "squad_v2": [[f"squad:v2@bert:{shape}"] for shape in BERTS],
    "speed": [],
    "gain": [[f"translation:{shape}"] for shape in GROUPINGS],
    "device_hours": [],
    "positions": [],
}


def config(spec: str) -> Config:
    """The config of a training; TASK@CONFIG: as many steps of CONFIG as all fine-tunings on TASK
    have, on its rows.
    """
    task, at, name = spec.rpartition("@")
    if not at:
        return get(name, train={"keep_moments": False})
    fields = load_fields(task)
    tasks, trials = ([f"glue:{one}" for one in VARIANTS], RATES * SEEDS) if task.startswith("glue") else ([task], SEEDS)
    steps = trials * sum(load_fields(one)["train"]["num_steps"] for one in tasks)
    train = {"num_steps": steps, "batch_size": fields["train"]["batch_size"]}
    return get(name, train=train, data={"sequence_length": fields["data"]["sequence_length"]})


@functools.cache
def hours(spec: str, chip: str, count: int) -> tuple[float, float]:
    """The chip-hours of a training, at least and at most, as `mhsh plan` prints them."""
    return step_time(config(spec), CHIPS[chip], count).chip_hours


def price(name: str, chip: str, count: int) -> str:
    """The chip-hours of each shape of an experiment, summed over its trainings."""
    ranges = ([hours(spec, chip, count) for spec in specs] for specs in SHAPES[name])
    return ", ".join("-".join(f"{sum(ends):.0f}" for ends in zip(*parts, strict=True)) for parts in ranges) or "-"


class Figures:
    """The figures that the runs of a folder have given.

    Raises:
      FileNotFoundError: a figure is asked for whose runs are not finished.
    """

    def __init__(self, runs: Path) -> None:
        self.runs = runs

    def read(self, name: str) -> Any:
        return json.loads((self.runs / name).read_text(encoding="utf-8"))

    def example(self) -> str:
        folders = sorted((self.runs / "example/runs").iterdir())
        return "loss " + ", ".join(f"{folder.name} {self.loss(f'example/runs/{folder.name}'):.3g}" for folder in folders)

    def loss(self, run: str) -> float:
        rows = map(json.loads, (self.runs / run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        losses: list[float] = [row["loss"] for row in rows if row["split"] == "validation"]
        if not losses:
            raise FileNotFoundError(run)
        return losses[-1]

    def bleu(self, shape: str) -> float:
        return float(self.read(f"{shape}.bleu.json")["bleu"])

    def task(self, folder: str) -> float:
        """The score of a task: of GLUE 100 times the metric that chose the rate, of SQuAD F1."""
        found = self.read(f"{folder}/summary.json")
        figures = found["figures"]
        return 100 * found["scores"][found["best"]] if "best" in found else figures.get("best_f1", figures.get("f1"))["mean"]

    def glue(self, shape: str) -> float:
        folders = [folder.name for folder in self.runs.glob(f"glue-*-{shape}")]
        if not folders:
            raise FileNotFoundError(shape)
        return statistics.fmean(map(self.task, folders))

    def time_ratio(self, file: str) -> float:
        """The deep shape's time over that of the shallow one: the largest ratio of all settings."""
        return max(cell["candidates"][1]["time_ratio"]["median"] for cell in self.read(f"{file}.json")["cells"])

    def device_hours(self, shape: str) -> float:
        for pair in (BASE, LARGE, PAIR):
            if shape in pair:
                found = self.read(f"train-{pair[0]}.json")
                one = found["cells"][0]["candidates"][pair.index(shape)]
                steps = found["configs"][one["config"]]["train"]["num_steps"]
                return one["seconds"]["median"] * one["devices"] * steps / 3600
        raise FileNotFoundError(shape)

    def positions(self) -> str:
        """The positions on which a token draws in a layer of the encoder, by all heads of it, in
        the mean; and which share of those it sees have the largest weight of some head.
        """
        cells = []
        for pair in ([f"{shape}-phase2" for shape in BASE], [f"{shape}-phase2" for shape in LARGE], PAIR):
            for run, model in zip(pair, self.read(f"positions-{pair[0]}.json")["models"], strict=True):
                found = model["result"]["encoder"]["attention"]
                share = found["argmax_stack"][-1] / found["visible"]
                cells.append(f"{run} {statistics.fmean(found['layers']):.3g} and {share:.0%}")
        return "a layer, and argmax share of the stack: " + ", ".join(cells)

    def iwslt(self) -> str:
        found = self.read("iwslt.bleu.json")["bleu"]
        shallow, deep = (statistics.fmean(found[name]) for name in ("baseline", "scores"))
        low, high = found["interval"]
        return f"BLEU: 6l4h {shallow:.3g}, 24l1h {deep:.3g}, difference {found['difference']:+.2f} ({low:+.2f} to {high:+.2f})"

    def describe_sizes(self, task: str, name: str, figure: Callable[[str], float]) -> str:
        """The parameters of every BERT, the FLOPs of all its fine-tunings, and the figure that they
        have given.
        """
        cells = []
        for shape in BERTS:
            cost = run_cost(config(f"{task}@bert:{shape}"))
            cell = f"{shape} {cost.parameters / 1e6:.0f}M, {cost.flops:.1e}"
            with contextlib.suppress(FileNotFoundError):
                cell += f", {name} {figure(shape):.3g}"
            cells.append(cell)
        return "parameters, FLOPs of all fine-tunings: " + "; ".join(cells)

    def results_of(self, name: str) -> str:
        """The figures of an experiment; empty until it is finished."""
        figures: dict[str, tuple[str, Callable[[str], float], Sequence[str]]] = {
            "wmt": ("BLEU", self.bleu, PAIR),
            "gain": ("BLEU", self.bleu, GROUPINGS),
            "bert_base": ("loss", self.loss, [f"{shape}-phase2" for shape in BASE]),
            "bert_large": ("loss", self.loss, [f"{shape}-phase2" for shape in LARGE]),
            "stability": ("loss", self.loss, ("48l1h-post_ln", "144l1h-post_ln-phase1", "384l1h-post_ln-phase1")),
            "speed": ("time, deep over shallow", self.time_ratio, ("inference-12l12h", "inference-24l16h", "decode-6l8h")),
            "device_hours": ("device-hours", self.device_hours, BERTS + PAIR),
        }
        others: dict[str, Callable[[], str]] = {
            "example": self.example,
            "iwslt": self.iwslt,
            "positions": self.positions,
            "glue": lambda: self.describe_sizes("glue:cola", "mean", self.glue),
            "squad_v1": lambda: self.describe_sizes("squad:v1", "F1", lambda shape: self.task(f"squad-v1-{shape}")),
            "squad_v2": lambda: self.describe_sizes("squad:v2", "F1", lambda shape: self.task(f"squad-v2-{shape}")),
        }
        try:
            if name in others:
                return others[name]()
            what, figure, shapes = figures[name]
            return f"{what}: " + ", ".join(f"{shape} {figure(shape):.3g}" for shape in shapes)
        except FileNotFoundError:
            return ""


def print_table(runs: Path, names: Sequence[str], scale: str) -> None:
    """A row for each of the experiments; `scale`: at which no result is one."""
    print("| experiment | chip-hours on 16 v5e | on 8 h100 | obtained; FLOPs |", "|---|---|---|---|", sep="\n", flush=True)
    for name in names:
        results = Figures(runs).results_of(name)
        cell = f"**scaled {scale}, no result:** {results}" if scale and results else results
        print(f"| `{name}` | {price(name, 'v5e', 16)} | {price(name, 'h100', 8)} | {cell} |", flush=True)
