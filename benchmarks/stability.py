"""How steadily shapes train: what the kept runs of the study say.

  python -m benchmarks.stability runs/study/trained runs/study/decoder --losses=docs/study/runs.csv

Prints the tables of docs/study/stability.md. The first has, for each sweep and shape, the highest
rate at which all runs trained, how many failed, and spikes of the loss (the rule of
docs/reports.md) of the steps whose losses were looked at, with exact Poisson intervals: of all
steps, or by older versions of the logged ones. The second has how many runs trained, against the
first shape, by Fisher's exact test with Holm's correction for all tests of the sweep, where all
shapes have the same rates and seeds. The third has the gradient's norm: each run's median, and its
99 % quantile, over the rows after the first ten, and by how much the medians differ from the first
shape's at equal rate and seed. The fourth has the groups in which a rate failed, of the runs of
which only losses are kept. A run that went on from a shorter one counts by what it trained itself.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import chi2, fisher_exact

from mhsh.storage.outcome import LEFT, PLATEAU_MARGIN, SPIKE_ROWS
from mhsh.sweep.folder import SweepFolder
from mhsh.verdict.estimate import difference
from mhsh.verdict.runs import RecordedRun, load_runs
from mhsh.verdict.stability import spikes_of

ROWS = 5  # whose mean loss says that a run has left the plateau
SEEDS = 3  # in common, below which no norms are set beside each other
ALL_STEPS = 6  # the schema of run folders from which on every step is looked at for a spike


class RunCounts(NamedTuple):
    """What is count_run of one run."""

    seed: int
    trained: bool
    fell_back: bool  # it had left the plateau, and ended on it
    steps: int  # whose losses were looked at
    spikes: int
    norm: float  # the median
    high: float  # the 99 % quantile


Shapes = dict[str, dict[float, list[RunCounts]]]  # by the rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="+", type=Path)
    parser.add_argument("--losses", type=Path)
    options = parser.parse_args()
    sweeps = {f"{sweep.name}, {scheme}": shapes for sweep in options.sweeps for scheme, shapes in shapes_by_scheme(sweep).items()}
    print_head("sweep", "layers x heads", "highest rate that trains", "of", "failed", "losses seen", "spikes per 1,000")
    for name, steps in sweeps.items():
        for shape, rates in merge_lengths(steps).items():
            highest, most = highest_rate({rate: all(run.trained for run in runs) for rate, runs in rates.items()})
            runs = [run for runs in rates.values() for run in runs]
            seen, spikes = sum(run.steps for run in runs), sum(run.spikes for run in runs)
            failed = f"{sum(not run.trained for run in runs)} of {len(runs)}"
            failed += f" ({fallen} fell back)" if (fallen := sum(run.fell_back for run in runs)) else ""
            print(f"| {name} | {shape} | {highest} | {most} | {failed} | {seen:,} | {rate_per_thousand(spikes, seen)} |")
    print_head("sweep", "layers x heads", "trained", "of the first shape", "p, corrected")
    for sweep in options.sweeps:
        print_shares(sweep.name, {scheme: merge_lengths(steps) for scheme, steps in shapes_by_scheme(sweep).items()})
    print_head("sweep", "steps", "layers x heads", "rate", "seeds", "median norm", "99 %", "ratio of medians")
    for name, steps in sweeps.items():
        for length, shapes in sorted(steps.items()):
            print_norms(f"| {name} | {length:,}", shapes)
    if options.losses:
        print_head("stage", "group", "highest rate that trains", "of")
        print_losses(options.losses)


def print_head(*columns: str) -> None:
    """The first two lines of a table."""
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")


def shapes_by_scheme(sweep: Path) -> dict[str, dict[int, Shapes]]:
    """The runs of a sweep by scheme, steps, shape and rate, in the order of its plan."""
    runs = {run.path.name: run for run in load_runs([sweep]).runs}
    found: dict[str, dict[int, Shapes]] = {}
    for cell in SweepFolder(sweep).read_plan().cells:
        if cell.name in runs:
            config = runs[cell.name].config
            model, kv = config.model, config.model.num_kv_heads
            shape = f"{model.num_layers}x{model.num_heads}" + (f", {kv} of keys" if kv else "")
            of_shape = found.setdefault(model.residual, {}).setdefault(config.train.num_steps, {}).setdefault(shape, {})
            of_shape.setdefault(config.optimizer.learning_rate, []).append(count_run(runs[cell.name]))
    return found


def count_run(run: RecordedRun) -> RunCounts:
    """The counts of a run, from the step on at which it went on from another."""
    curve = run.curves["train"]
    after = run.recorded("branched_from", "step") or 0
    norms = curve.metrics["grad_norm"][SPIKE_ROWS:]
    norms = norms[np.isfinite(norms)]
    spikes = sum(step > after for step, _ in spikes_of(curve))
    every = (run.recorded_number("schema") or 0) >= ALL_STEPS
    steps = int(curve.steps[-1] - after if every else np.sum(curve.steps > after))
    norm, high = np.quantile(norms, (0.5, 0.99)) if len(norms) else (math.nan, math.nan)
    left = (run.recorded_number("data", "unigram_entropy") or math.nan) - PLATEAU_MARGIN
    had_left = bool(len(curve) >= ROWS and np.min(np.convolve(curve.loss, np.full(ROWS, 1 / ROWS), "valid")) < left)
    trained = run.outcome == LEFT
    return RunCounts(run.config.train.seed, trained, had_left and not trained, steps, spikes, float(norm), float(high))


def merge_lengths(steps: Mapping[int, Shapes]) -> Shapes:
    """All lengths together."""
    found: Shapes = {}
    for shapes in steps.values():
        for shape, rates in shapes.items():
            for rate, runs in rates.items():
                found.setdefault(shape, {}).setdefault(rate, []).extend(runs)
    return found


def highest_rate(trained: Mapping[float, bool]) -> tuple[str, str]:
    """The highest rate that trains, and the highest that was tried."""
    highest = max((rate for rate, trains in trained.items() if trains), default=None)
    return f"{highest:g}" if highest else "none", f"{max(trained):g}"


def rate_per_thousand(count: int, seen: int) -> str:
    """A rate per 1,000 losses with its exact 95 % interval, counts being Poisson's."""
    low, high = chi2.ppf(0.025, 2 * count) / 2 if count else 0.0, chi2.ppf(0.975, 2 * count + 2) / 2
    return f"{1000 * count / seen:.1f} ({1000 * low / seen:.1f} to {1000 * high / seen:.1f})"


def print_shares(sweep: str, schemes: Mapping[str, Shapes]) -> None:
    """A row for each shape after the first of its scheme."""
    tests = []
    for scheme, shapes in schemes.items():
        first, *others = shapes
        cells = {
            shape: Counter((rate, run.seed) for rate, runs in rates.items() for run in runs) for shape, rates in shapes.items()
        }
        counts = {shape: [run.trained for runs in rates.values() for run in runs] for shape, rates in shapes.items()}
        for shape in others:
            if cells[shape] == cells[first]:
                tests.append((scheme, shape, counts[shape], counts[first]))
    p_values = [fisher_exact([[sum(each), len(each) - sum(each)] for each in (ours, theirs)]).pvalue for *_, ours, theirs in tests]
    for (scheme, shape, ours, theirs), p_value in zip(tests, holm(p_values), strict=True):
        shares = " | ".join(f"{sum(each)} of {len(each)}" for each in (ours, theirs))
        print(f"| {sweep}, {scheme} | {shape} | {shares} | {p_value:.2g} |")


def holm(p_values: Sequence[float]) -> list[float]:
    """Each p-value, corrected for all of them: the test is significant where it is below 0.05."""
    corrected, least = [1.0] * len(p_values), 0.0
    for rank, place in enumerate(np.argsort(p_values)):
        least = corrected[place] = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
    return corrected


def print_norms(start: str, shapes: Shapes) -> None:
    """A row for each shape after the first, at the rate with the most common seeds that trained."""
    first, *others = shapes
    medians = {
        shape: {rate: {run.seed: run for run in runs if run.trained} for rate, runs in rates.items()}
        for shape, rates in shapes.items()
    }
    for shape in others:
        common = {rate: runs.keys() & medians[first].get(rate, {}).keys() for rate, runs in medians[shape].items()}
        rate = max(common, key=lambda rate: (len(common[rate]), rate))
        if len(common[rate]) < SEEDS:
            continue
        ours, theirs = ({seed: medians[name][rate][seed] for seed in common[rate]} for name in (shape, first))
        apart = difference(*({(seed, seed): math.log(run.norm) for seed, run in runs.items()} for runs in (ours, theirs)))
        ratio = f"{math.exp(apart.mean):.2f} ({math.exp(apart.low):.2f} to {math.exp(apart.high):.2f})"
        norm, high = (
            "{} / {}".format(*(f"{np.mean([getattr(run, key) for run in runs.values()]):.2f}" for runs in (ours, theirs)))
            for key in ("norm", "high")
        )
        print(f"{start} | {shape} / {first} | {rate:g} | {apart.seeds} | {norm} | {high} | {ratio} |")


def print_losses(path: Path) -> None:
    """The highest rate that trains of each group in a table of runs in which one did not."""
    found: dict[tuple[str, str], dict[float, bool]] = defaultdict(dict)
    with path.open() as file:
        for row in csv.DictReader(file):
            if match := re.search(r"_learning_rate-([0-9.e-]+)", row["run"]):
                group, rate = row["run"][: match.start()], float(match[1])
                rates = found[row["stage"], group]
                rates[rate] = rates.get(rate, True) and row["outcome"] == "trained"
    for (stage, group), rates in found.items():
        if not all(rates.values()):
            print(f"| {stage} | {group} | {' | '.join(highest_rate(rates))} |")


if __name__ == "__main__":
    main()
