"""How often pages with several groups are judged wrongly, by the rule of mhsh/verdict and others.

  python -m benchmarks.verdicts.pages   # docs/development/verdicts.md has the tables in short

Takes two minutes on an idle core. A page has a baseline and some groups, all with the same seeds,
and one test a group; none is tuned. All rules correct for the number of tests by Bonferroni, whose
first step is Holm's. Prints the worst of all cells by rule, then of the rule that was taken the
worst by noise, deviations, seeds and tests. The worst of 700 cells is so by chance too: the
twenty worst are simulated again on more pages.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import digamma, polygamma, stdtrit

from benchmarks.verdicts.coverage import BASELINE, NOISES, SMOOTH
from mhsh.verdict.estimate import MEDIANS, OWN_SHARE, POOLED_WIDENING, WIDENING

PAGES = 4000
AGAIN, WORST = 100, 20  # how often so many pages are simulated again, of how many cells
SEEDS, TESTS = (3, 4, 5, 6, 8, 10, 12), (1, 2, 3, 5, 9)
SHIFT = 2.0  # deviations of the difference, of the first group where power is asked for
STEP = 0.5  # of a measure in few values, in deviations
# The deviations of the baseline and of the groups; of the last kind one group alone.
SPREADS: Mapping[str, tuple[float, float, float]] = {
    "equal": (1.0, 1.0, 1.0),
    "quiet baseline": (BASELINE, 1.0, 1.0),
    "unequal": (1.0, 0.5, 2.0),
    "one five times": (1.0, 1.0, 5.0),
}
Differences = Float[np.ndarray, "pages tests seeds"]
Halves = Float[np.ndarray, "pages tests"]
Rule = Callable[[Differences, float], Halves]  # half of the intervals that leave out the truth so often


class SimulatedCell(NamedTuple):
    noise: str
    spread: str
    seeds: int
    tests: int


def quantile(freedom: float | np.ndarray, level: float | np.ndarray) -> float | np.ndarray:
    return stdtrit(freedom, 1 - level / 2)


def errors(differences: Differences) -> Halves:
    """The standard errors of the mean differences, by each group's own spread."""
    return np.maximum(differences.std(axis=2, ddof=1), 1e-5) / math.sqrt(differences.shape[2])


def typical_spread_rule(differences: Differences, level: float, pooled_widening: float = POOLED_WIDENING) -> Halves:
    """DIFFERENCE_RULE of mhsh/verdict/estimate.py, of all pages at once."""
    tests, seeds = differences.shape[1:]
    own_errors, own_quantile = errors(differences), quantile(seeds - 1, level)
    widest = WIDENING * own_quantile * own_errors
    if tests == 1:
        return widest
    typical = np.minimum(own_errors.mean(axis=1), MEDIANS * np.sqrt(np.median(own_errors**2, axis=1)))[:, None]
    pooled_quantile = quantile((tests - 1) * (seeds - 1), level)
    by_both = (OWN_SHARE * own_quantile + (1 - OWN_SHARE) * pooled_quantile) * own_errors**2 / typical
    return np.maximum(pooled_widening * pooled_quantile * typical, np.minimum(by_both, widest))


def student_rule(differences: Differences, level: float, width: float) -> Halves:
    """Half-widths of Student's intervals, so many times as wide."""
    return width * quantile(differences.shape[2] - 1, level) * errors(differences)


def larger_error_rule(differences: Differences, level: float, width: float) -> Halves:
    """Half-widths by the larger of a group's own error and that of all groups together, with the
    degrees of freedom of these.
    """
    tests, seeds = differences.shape[1:]
    found = errors(differences)
    together = np.sqrt(np.square(found).mean(axis=1, keepdims=True))
    return width * quantile(tests * (seeds - 1), level) * np.maximum(found, together)


def moderated_rule(differences: Differences, level: float, width: float) -> Halves:
    """Half-widths by limma (Smyth 2004): variances drawn to that of the page, as far as they are
    alike. The prior has more degrees of freedom the less the logarithms of the variances differ.
    """
    tests, seeds = differences.shape[1:]
    freedom, variances = seeds - 1.0, errors(differences) ** 2
    if tests == 1:
        return student_rule(differences, level, width)
    logs = np.log(variances) - digamma(freedom / 2) + math.log(freedom / 2)
    excess = logs.var(axis=1, ddof=1) - polygamma(1, freedom / 2)
    halves = np.geomspace(1e-3, 1e6, 2000)  # of the prior's degrees of freedom, at most two millions
    prior = 2 * np.interp(excess, polygamma(1, halves)[::-1], halves[::-1])
    center = np.exp(logs.mean(axis=1) + digamma(prior / 2) - np.log(prior / 2))
    together = prior + freedom
    drawn = ((prior * center)[:, None] + freedom * variances) / together[:, None]
    return width * quantile(np.minimum(together, tests * freedom), level)[:, None] * np.sqrt(drawn)


def sign_rule(differences: Differences, level: float) -> Halves:
    """An exact test of each group by the signs of its seeds' differences: 0 where it tells it from
    the baseline, else without end. Fewer seeds than 1 - log2(level) never do.
    """
    seeds = differences.shape[2]
    flips = np.array(list(itertools.product((1.0, -1.0), repeat=seeds - 1)))  # of all but the first, as both signs count
    means = np.abs(differences[..., 1:] @ flips.T + differences[..., :1]) / seeds
    share = (means >= np.abs(differences.mean(axis=2, keepdims=True)) - 1e-12).mean(axis=2)
    return np.where(share <= level, 0.0, np.inf)


RULES: Mapping[str, Rule] = {
    "Student's t": lambda differences, level: student_rule(differences, level, 1.0),
    "Student's t, 1.6 times as wide (before)": lambda differences, level: student_rule(differences, level, 1.6),
    "the larger of two errors, 1.3 times": lambda differences, level: larger_error_rule(differences, level, 1.3),
    "moderated (limma), 1.8 times": lambda differences, level: moderated_rule(differences, level, 1.8),
    "sign flips": sign_rule,
    "typical spread, 1 time": lambda differences, level: typical_spread_rule(differences, level, 1.0),
    f"typical spread, {POOLED_WIDENING} times (taken)": typical_spread_rule,
    "typical spread, 1.25 times": lambda differences, level: typical_spread_rule(differences, level, 1.25),
}


def pages(rng: np.random.Generator, cell: SimulatedCell, shift: float = 0.0) -> Differences:
    """Differences to the baseline; the last group has the spread's third deviation."""
    base, first, last = SPREADS[cell.spread]
    is_alone = cell.tests == 1 and cell.spread == "one five times"
    deviations = np.array([first] * (cell.tests - 1) + [first if is_alone else last])
    kind, few = cell.noise.removesuffix(", few values"), cell.noise.endswith(", few values")
    values = deviations[:, None] * NOISES[kind](rng, (PAGES, cell.tests, cell.seeds))
    values[:, 0] += shift * math.hypot(base, deviations[0])
    quiet = "normal" if cell.spread == "quiet baseline" else kind
    baseline = base * NOISES[quiet](rng, (PAGES, 1, cell.seeds))
    if few:
        # Up or down at random, so that the means stay.
        values, baseline = (STEP * np.floor(each / STEP + rng.uniform(size=each.shape)) for each in (values, baseline))
    return values - baseline


def marked_share(differences: Differences, rule: Rule, place: int | slice = slice(None)) -> float:
    """The share of pages on which any of these groups has an interval without 0."""
    outside = np.abs(differences.mean(axis=2)) > rule(differences, 0.05 / differences.shape[1])
    return float(outside[:, place].reshape(len(differences), -1).any(axis=1).mean())


def simulate_cells() -> dict[SimulatedCell, Differences]:
    rng = np.random.default_rng(0)
    noises = (*SMOOTH, "normal, few values")
    return {cell: pages(rng, cell) for cell in itertools.starmap(SimulatedCell, itertools.product(noises, SPREADS, SEEDS, TESTS))}


def rule_rows(cells: Mapping[SimulatedCell, Differences]) -> Iterator[tuple[str, ...]]:
    rng = np.random.default_rng(1)
    powers = [pages(rng, SimulatedCell("normal", spread, *size), SHIFT) for size in ((5, 3), (6, 9)) for spread in SPREADS]
    for name, rule in RULES.items():
        if rule is sign_rule:
            # 2 to the power of 11 flips take long.
            tried = {cell: differences for cell, differences in cells.items() if cell.seeds <= 8}
        else:
            tried = cells
        wrong = {cell: marked_share(differences, rule) for cell, differences in tried.items()}
        normal = [1 - share for cell, share in wrong.items() if cell.noise == "normal"]
        worst = max(wrong, key=wrong.__getitem__)
        figures = (wrong[worst], min(normal), max(normal))
        power = (marked_share(differences, rule, 0) for differences in powers)
        yield name, *(f"{each:.3f}" for each in (*figures, *power)), f"{worst.noise}, {worst.spread}, {worst.seeds}, {worst.tests}"


def cell_rows(wrong: Mapping[SimulatedCell, float]) -> Iterator[tuple[str, ...]]:
    for noise, spread in itertools.product(dict.fromkeys(cell.noise for cell in wrong), SPREADS):
        shares = {cell: share for cell, share in wrong.items() if (cell.noise, cell.spread) == (noise, spread)}
        yield noise, spread, *(f"{max(share for cell, share in shares.items() if cell.tests == tests):.3f}" for tests in TESTS)


def resimulated_rows(wrong: Mapping[SimulatedCell, float]) -> Iterator[tuple[str, ...]]:
    """The shares of the worst cells on new pages, and how often two deviations are found."""
    rng = np.random.default_rng(2)
    for cell in sorted(wrong, key=wrong.__getitem__)[: -WORST - 1 : -1]:
        again = np.mean([marked_share(pages(rng, cell), typical_spread_rule) for _ in range(AGAIN)])
        yield f"{cell.noise}, {cell.spread}, {cell.seeds}, {cell.tests}", f"{wrong[cell]:.3f}", f"{again:.4f}"
    for cell in itertools.starmap(SimulatedCell, itertools.product(("normal",), SPREADS, (5,), (3,))):
        found = np.mean([marked_share(pages(rng, cell, SHIFT), typical_spread_rule, 0) for _ in range(AGAIN)])
        yield f"finds {SHIFT:g}, {cell.spread}", "", f"{found:.4f}"


def main() -> None:
    cells = simulate_cells()
    columns = ["rule", "wrong pages", "all intervals hold, normal: least", "most"]
    columns += [
        f"finds {SHIFT:g}, {seeds} seeds, {tests} tests, {spread}" for seeds, tests in ((5, 3), (6, 9)) for spread in SPREADS
    ]
    print(f"| {' | '.join((*columns, 'most wrong'))} |\n|{' --- |' * (len(columns) + 1)}")
    for row in rule_rows(cells):
        print(f"| {' | '.join(row)} |", flush=True)
    wrong = {cell: marked_share(differences, typical_spread_rule) for cell, differences in cells.items()}
    print("\nWrong pages by the rule that was taken, the worst of all seeds:\n")
    print(f"| noise | deviations | {' | '.join(f'{tests} tests' for tests in TESTS)} |\n|{' --- |' * (len(TESTS) + 2)}")
    for row in cell_rows(wrong):
        print(f"| {' | '.join(row)} |", flush=True)
    print(f"\n| the worst cells | {PAGES} pages | {AGAIN * PAGES} others |\n|{' --- |' * 3}")
    for row in resimulated_rows(wrong):
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
