"""How often the intervals and verdicts of mhsh/verdict are right, in simulations of known truth.

  python -m benchmarks.verdicts.coverage   # docs/development/verdicts.md has the tables in short

Takes two minutes on one core. Prints Markdown: the coverage of the interval, wrong verdicts among
equal groups, and differences of tuned losses.
"""

from __future__ import annotations

import functools
import itertools
import math
import textwrap
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from scipy import stats
from scipy.special import stdtr, stdtrit

from mhsh.verdict.estimate import WIDENING, Doubt, Estimate, Replicate, difference, judge, spreads
from mhsh.verdict.tuning import find_optimum, rates_to_add

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
SEEDS = (2, 3, 4, 5, 7, 10)
SKEW = 0.8  # of a lognormal; Student's 95 % intervals then cover 0.92, 0.88, 0.86 with 2, 3, 5 seeds
FAR = 20.0  # deviations between the runs that trained and the others
# A trained run's noise, with mean 0 and deviation 1, and the share of runs that do not train.
NOISES: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "t3": lambda rng, shape: rng.standard_t(3, shape) / math.sqrt(3),
    "skewed": lambda rng, shape: lognormal(rng, shape, SKEW),
    "exponential": lambda rng, shape: rng.exponential(size=shape) - 1,
    "60 % stuck": lambda rng, shape: rng.standard_normal(shape),
    "10 % failing": lambda rng, shape: rng.standard_normal(shape),
}
UNTRAINED = {"60 % stuck": 0.6, "10 % failing": 0.1}
SMOOTH = tuple(noise for noise in NOISES if noise not in UNTRAINED)
BASELINE = 0.25  # deviation of a quieter, normal baseline


def lognormal(rng: np.random.Generator, shape: tuple[int, ...], sigma: float) -> np.ndarray:
    """Skewed values with mean 0 and deviation 1."""
    values = np.exp(sigma * rng.standard_normal(shape) - sigma**2 / 2)
    return (values - 1) / math.sqrt(math.expm1(sigma**2))


def draw(rng: np.random.Generator, noise: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Losses and whether each run trained: FAR higher if not."""
    stuck = rng.random(shape) < UNTRAINED.get(noise, 0)
    return NOISES[noise](rng, shape) + FAR * stuck, ~stuck


def losses_by_seed(losses: np.ndarray, first: int = 0) -> dict[Replicate, float]:
    """Losses by the seeds first, first + 1, ..."""
    return {(seed, seed): loss for seed, loss in enumerate(losses.tolist(), first)}


def student(ours: np.ndarray, theirs: np.ndarray, paired: bool) -> tuple[np.ndarray, np.ndarray, int]:
    """The rule before, plain Student's t: means of the differences, their standard errors and
    degrees of freedom, of losses [simulations, seeds].
    """
    seeds = ours.shape[1]
    if paired:
        return (ours - theirs).mean(axis=1), (ours - theirs).std(axis=1, ddof=1) / math.sqrt(seeds), seeds - 1
    error = np.sqrt((ours.var(axis=1, ddof=1) + theirs.var(axis=1, ddof=1)) / seeds)
    return ours.mean(axis=1) - theirs.mean(axis=1), error, seeds - 1


def verdict(ours: np.ndarray, trained: np.ndarray, theirs: np.ndarray, their_trained: np.ndarray, paired: bool) -> Estimate | float:
    """The engine's finding on two groups: a difference of losses if all runs trained, else the
    p-value of how many did.
    """
    if trained.all() and their_trained.all():
        return difference(losses_by_seed(ours), losses_by_seed(theirs, 0 if paired else 100))
    return fisher(*((int(each.sum()), int((~each).sum())) for each in (trained, their_trained)))


@functools.cache
def fisher(ours: tuple[int, int], theirs: tuple[int, int]) -> float:
    return float(stats.fisher_exact([ours, theirs]).pvalue)


def coverage(noise: str, seeds: int, paired: bool, count: int) -> tuple[float, float, float, float]:
    """The share of 95 % intervals of a difference to a quieter normal baseline that covers: by
    plain t, by `difference`, and by `difference` where all runs trained; and where they did.
    """
    rng = np.random.default_rng(seeds)
    losses, trained = draw(rng, noise, (count, seeds))
    theirs = BASELINE * rng.standard_normal((count, seeds))
    mean, error, freedom = student(losses, theirs, paired)
    truth = UNTRAINED.get(noise, 0) * FAR
    before = np.abs(mean - truth) <= stdtrit(freedom, 0.975) * error
    found = [difference(losses_by_seed(a), losses_by_seed(b, 0 if paired else 100)) for a, b in zip(losses, theirs, strict=True)]
    low, high = np.array([(each.low, each.high) for each in found]).T
    given = trained.all(axis=1)
    ruled = np.mean((low <= 0) & (high >= 0), where=given) if given.sum() >= 100 else math.nan
    return float(before.mean()), float(np.mean((low <= truth) & (high >= truth))), float(ruled), float(given.mean())


def wrong_verdicts(noise: str, seeds: int, paired: bool, count: int, groups: int = 10, quiet: bool = False) -> tuple[float, float]:
    """The share of simulations in which any group is called different from the first, by plain t
    and by `verdict`, both with Holm's correction. All groups are equal; if `quiet`, the first has
    an equal mean alone.
    """
    rng = np.random.default_rng(seeds)
    losses, trained = draw(rng, noise, (groups, count, seeds))
    if quiet:
        losses[0] = BASELINE * rng.standard_normal((count, seeds))
    plain = [student(group, losses[0], paired) for group in losses[1:]]
    p_values = np.array([2 * stdtr(freedom, -np.abs(mean) / error) for mean, error, freedom in plain])
    others = range(1, groups)
    wrong = [
        any_significant(
            [verdict(losses[group, each], trained[group, each], losses[0, each], trained[0, each], paired) for group in others]
        )
        for each in range(count)
    ]
    return float(np.mean(p_values.min(axis=0) <= 0.05 / (groups - 1))), float(np.mean(wrong))


def p_values_of(found: Sequence[Estimate | float]) -> list[float]:
    """The p-values of one section's differences, and of shares that trained, as the tests of one
    page.
    """
    tests, remaining = len(found), iter(spreads([each for each in found if isinstance(each, Estimate)]))
    return [tests * each if isinstance(each, float) else judge(each, next(remaining), tests=tests).p_value for each in found]


def any_significant(found: Sequence[Estimate | float]) -> bool:
    """Whether a difference, or a share that trained, is significant."""
    return any(p_value <= 0.05 for p_value in p_values_of(found))


class Shape:
    """A shape whose best possible loss is 0. Its loss rises by 0.03 to 0.3 nats per octave squared
    of the rate, by `uneven` times that on one side of the optimum.
    """

    def __init__(self, rng: np.random.Generator, noise: float, seeds: np.ndarray, rates: int, uneven: float) -> None:
        self.rng, self.noise, self.seeds = rng, noise, seeds  # seeds: what each adds to the loss at all rates
        self.optimum, self.rise = rng.uniform(-(rates - 3) / 2, (rates - 3) / 2), rng.uniform(0.03, 0.3)
        self.sides = (1.0, uneven) if rng.random() < 0.5 else (uneven, 1.0)

    def runs(self, rate: float, first: int, last: int) -> dict[Replicate, float]:
        """Final losses of the seeds from `first` to before `last`."""
        octaves = math.log2(rate) - self.optimum
        loss = self.rise * octaves**2 * self.sides[octaves > 0]
        return losses_by_seed(loss + self.seeds[first:last] + self.noise * self.rng.standard_normal(last - first), first)


def tuning(
    deviation: float, share: float, design: tuple[int, int, int], uneven: float = 1.0, refine: bool = False, count: int = 1000
) -> list[float]:
    """Simulates two shapes with equal best losses, tuned on octaves: coverage and wrong verdicts of
    plain t and of the engine, both half-widths, and how often a best rate is at an edge.

    `design`: how many rates, choosing and reporting seeds. `share`: of the variance, by the seed.
    """
    rates, choosing, reporting = design
    rng = np.random.default_rng(rates * choosing * reporting)
    rows = []
    for _ in range(count):
        seeds = math.sqrt(share) * deviation * rng.standard_normal(choosing + reporting)
        shapes = [Shape(rng, math.sqrt(1 - share) * deviation, seeds, rates, uneven) for _ in range(2)]
        grids = [
            {2.0**octave: shape.runs(2.0**octave, 0, choosing) for octave in range(-(rates // 2), rates // 2 + 1)}
            for shape in shapes
        ]
        for again in range(3 if refine else 1):
            found = [find_optimum(grid) for grid in grids]
            ours, theirs = (
                shape.runs(each.rate, choosing, choosing + reporting) for shape, each in zip(shapes, found, strict=True)
            )
            plain = difference(ours, theirs)
            for shape, grid, each in zip(shapes, grids, found, strict=True):
                more = rates_to_add(grid, each, (plain.high - plain.low) / 2) if refine and again < 2 else ()
                grid.update((rate, shape.runs(rate, 0, choosing)) for rate in more)
        if any(each.at_edge for each in found):
            continue
        doubt = Doubt(found[0].hidden_gain - found[1].hidden_gain, math.hypot(found[0].hidden_error, found[1].hidden_error))
        widened = judge(plain, doubt=doubt)
        half_width = (plain.high - plain.low) / 2 / WIDENING
        before = abs(plain.mean) <= half_width
        covers = widened.low <= 0 <= widened.high
        rows.append((before, not before, covers, widened.is_significant, half_width, (widened.high - widened.low) / 2))
    return [*np.mean(rows, axis=0).tolist(), 1 - len(rows) / count]


def coverage_rows(count: int = 4000) -> Iterator[Sequence[str]]:
    for noise, paired in itertools.product(NOISES, (True, False)):
        found = [coverage(noise, seeds, paired, count) for seeds in SEEDS]
        pairing = "paired" if paired else "unpaired"
        yield noise, pairing, "before", *(f"{each[0]:.3f}" for each in found)
        yield noise, pairing, "after", *(f"{each[1]:.3f}" for each in found)
        if noise in UNTRAINED:
            yield noise, pairing, "after, if all trained", *("-" if math.isnan(each[2]) else f"{each[2]:.3f}" for each in found)
            yield noise, pairing, "in how many all trained", *(f"{each[3]:.3f}" for each in found)


def wrong_rows(count: int = 3000) -> Iterator[Sequence[str]]:
    cases = [(noise, paired, 10, False) for noise, paired in itertools.product(NOISES, (True, False))]
    cases += [("skewed", paired, groups, True) for groups, paired in itertools.product((2, 10), (True, False))]
    for noise, paired, groups, quiet in cases:
        found = [wrong_verdicts(noise, seeds, paired, count, groups, quiet) for seeds in SEEDS[1:]]
        names = (noise + ", the first normal and quieter" * quiet, str(groups), "paired" if paired else "unpaired")
        for place, rule in enumerate(("before", "after")):
            yield *names, rule, *(f"{each[place]:.3f}" for each in found)


def tuning_rows() -> Iterator[Sequence[str]]:
    designs = ((5, 2, 3), (5, 2, 5), (7, 3, 5))
    cases = [(*each, 1.0, False) for each in itertools.product((0.03, 0.01), (0.0, 0.7), designs)]
    cases += [(deviation, 0.7, (5, 2, 5), *each) for deviation in (0.03, 0.01) for each in ((1.0, True), (4.0, False), (4.0, True))]
    for deviation, share, design, uneven, refine in cases:
        found = tuning(deviation, share, design, uneven, refine)
        names = (f"{deviation}", f"{share}", "{} / {} / {}".format(*design), f"{uneven:g}", "yes" if refine else "no")
        yield *names, *(f"{each:.3f}" for each in found)


TABLES: tuple[tuple[str, str, Sequence[str], Callable[[], Iterator[Sequence[str]]]], ...] = (
    (
        "Coverage of a difference",
        "The baseline is normal with a quarter of the deviation, so that little hides the noise of the other group. Runs that "
        f"did not train are {FAR:g} deviations higher. `before` is Student's t (Welch's if not paired). `after` is the engine's "
        "interval, and for runs that did not train what it would say if it compared losses all the same. It does not: `if all "
        "trained` is what it does (- where fewer than 100 of 4000 simulations have an interval).",
        ["noise", "seeds", "rule", *map(str, SEEDS)],
        coverage_rows,
    ),
    (
        "Wrong verdicts among equal groups",
        "The share of pages on which any group is called lower, higher, or other in how many trained. All groups have one "
        "distribution but in the last rows: there the first is normal with a quarter of the deviation, and the means alone are "
        "equal.",
        ["noise", "groups", "seeds", "rule", *map(str, SEEDS[1:])],
        wrong_rows,
    ),
    (
        "Two tuned shapes with equal best losses",
        "Their losses rise by 0.03 to 0.3 nats per octave squared, drawn for each; `uneven` is how many times steeper one side "
        "is. The best of a grid of octaves is chosen on some seeds and reported on others. `refined` grids have had `rates_to_add` "
        "twice.",
        [
            *("deviation", "shared by seeds", "rates / choosing / reporting", "uneven", "refined", "covers before", "wrong before"),
            *("covers after", "wrong after", "half-width before", "half-width after", "at an edge"),
        ],
        tuning_rows,
    ),
)


def main() -> None:
    print("# How often the verdicts are right\n\nWritten by `python -m benchmarks.verdicts.coverage`: simulations of known truth.")
    for title, text, columns, rows in TABLES:
        print(f"\n## {title}\n\n{textwrap.fill(text, 100)}\n\n| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
        for row in rows():
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
