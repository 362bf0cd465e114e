"""Whether runs of a sweep differ in validation loss in text that repeats itself, or everywhere.

  python -m benchmarks.repeats runs/study/trained wiki --reference=1x24

Prints the tables of docs/study/seeds.md. No checkpoint is needed: a run keeps its last validation
loss in up to 20 parts. A *repeat* is a token that has followed the one before it earlier in its
row, so that a model that looks there can copy it. For each run of the longest length the loss of
each part, minus the mean of the reference's runs, is regressed on the share of repeats in that
part: the slope is nats a repeat, the intercept what is left where nothing repeats. Beside it, the
difference in training loss to the reference's run of the same seed, which has the same batches, by
a thousand steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import msgspec
import numpy as np
from jaxtyping import Float, Int
from scipy.stats import linregress, t

from mhsh.data.load import load_corpus
from mhsh.storage.files import absolute
from mhsh.verdict.estimate import estimate
from mhsh.verdict.runs import RecordedRun, load_runs

WINDOW = 1000  # steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep")
    parser.add_argument("rows", help="the prepared rows that it validated on")
    parser.add_argument("--reference", required=True, metavar="LAYERSxHEADS")
    options = parser.parse_args()
    runs = reporting_runs(load_runs([options.sweep]).runs)
    reference = runs[options.reference]
    first = next(iter(reference.values()))
    rows = validated_rows(first, options.rows)
    repeats, known = (
        part_means(share, first.config.train.eval_batches, len(first.loss_parts))
        for share in (repeat_shares(pairs(rows)), repeat_shares(rows))
    )
    usual = np.mean([run.loss_parts for run in reference.values()], axis=0)
    print(f"repeats, by part: {repeats.min():.3f} to {repeats.max():.3f}, {repeats.mean():.3f} in all")
    print(f"tokens that were in their row before: {known.min():.3f} to {known.max():.3f}")
    of_known, of_loss = correlation(known, repeats), correlation(usual, repeats)
    print(f"correlation of repeats with these: {of_known:.2f}, with the loss of {options.reference}: {of_loss:.2f}\n")
    tests = sum(len(group) for name, group in runs.items() if name != options.reference)
    print("| layers x heads | seed | final loss | nats a repeat | where nothing repeats | r of repeats, of known tokens |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, group in runs.items():
        slopes = []
        for seed, run in sorted(group.items()):
            others = [each.loss_parts for other, each in reference.items() if other != seed]
            apart_by_part = run.loss_parts - (usual if name != options.reference else np.mean(others, axis=0))
            fit = linregress(repeats, apart_by_part)
            half_width = fit.stderr * t.ppf(1 - 0.025 / tests, len(repeats) - 2)
            slopes.append(fit.slope)
            interval = f"{fit.slope:+.2f} ({fit.slope - half_width:+.2f} to {fit.slope + half_width:+.2f})"
            print(
                f"| {name} | {seed} | {run.curves['validation'].loss[-1]:.3f} | {interval} | {fit.intercept:+.3f} "
                f"| {fit.rvalue:+.2f}, {correlation(known, apart_by_part):+.2f} |"
            )
        mean = estimate(slopes)
        print(f"| {name} | all | | {mean.mean:+.2f} ({mean.low:+.2f} to {mean.high:+.2f}) | | |")
    for name, group in runs.items():
        if name != options.reference:
            print(f"\n{name} minus {options.reference}, training loss by {WINDOW:,} steps:")
            for seed, run in sorted(group.items()):
                print(f"  seed {seed}:", " ".join(f"{each:+.3f}" for each in loss_differences(run, reference[seed])))


def reporting_runs(runs: Sequence[RecordedRun]) -> dict[str, dict[int, RecordedRun]]:
    """The runs of the longest length by shape and seed, at the rate that has the most of them."""
    longest = max(run.config.train.num_steps for run in runs)
    found: dict[str, dict[float, dict[int, RecordedRun]]] = {}
    for run in runs:
        if run.config.train.num_steps == longest:
            shape = f"{run.config.model.num_layers}x{run.config.model.num_heads}"
            found.setdefault(shape, {}).setdefault(run.config.optimizer.learning_rate, {})[run.config.train.seed] = run
    return {shape: max(rates.values(), key=len) for shape, rates in found.items()}


def validated_rows(run: RecordedRun, folder: str) -> Int[np.ndarray, "rows T+1"]:
    """The rows that the run validated on, each with the token that follows its last."""
    config = msgspec.structs.replace(run.config, data=msgspec.structs.replace(run.config.data, source=f"arrayrecord:{folder}"))
    batches = load_corpus(config, absolute(run.path) / "vocab.txt").validation_batches(
        config.train.batch_size, slice(0, config.train.batch_size)
    )
    found = [batches[number] for number in range(config.train.eval_batches)]
    return np.concatenate([np.concatenate([batch["inputs"], batch["targets"][:, -1:]], axis=1) for batch in found])


def pairs(rows: Int[np.ndarray, "rows T+1"]) -> Int[np.ndarray, "rows T"]:
    """A number for each pair of neighbours."""
    return rows[:, :-1].astype(np.int64) << 32 | rows[:, 1:]


def repeat_shares(rows: Int[np.ndarray, "rows T"]) -> Float[np.ndarray, " rows"]:
    """The share of each row that was in it before."""
    return np.array([1 - len(set(row)) / len(row) for row in rows.tolist()])


def correlation(one: Float[np.ndarray, " parts"], other: Float[np.ndarray, " parts"]) -> float:
    """Pearson's correlation."""
    return float(np.corrcoef(one, other)[0, 1])


def part_means(values: Float[np.ndarray, " rows"], batches: int, parts: int) -> Float[np.ndarray, " parts"]:
    """Means over the parts of mhsh.evaluation.evaluate."""
    return np.array([part.mean() for part in np.array_split(values.reshape(batches, -1).mean(axis=1), parts)])


def loss_differences(run: RecordedRun, reference: RecordedRun) -> Float[np.ndarray, " windows"]:
    """The difference in training loss at equal steps, means over WINDOW steps. Raises ValueError
    where they read other batches.
    """
    if not np.array_equal(run.batches["checksum"], reference.batches["checksum"]):
        raise ValueError(f"{run.path} and {reference.path} read other batches")
    curve, other = run.curves["train"], reference.curves["train"]
    window = ((curve.x["step"] - 1) // WINDOW).astype(int)
    return np.bincount(window, curve.loss - other.loss) / np.bincount(window)


if __name__ == "__main__":
    main()
