"""Rules that borrow deviations from the other groups of a page, beside today's, in simulations.

  python -m benchmarks.verdicts.pooled   # docs/development/verdicts.md has what it says

Takes a minute on one core. A page has a baseline and some groups, all with the same seeds, and one
test a group. By rule and width it prints the worst of all cells: the share of pages on which an
equal group is called different, the coverage of an interval without correction, and how often a
difference of two deviations is found.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import digamma, polygamma, stdtr, stdtrit

from benchmarks.verdicts.coverage import BASELINE, NOISES, SMOOTH

PAGES = 1000
SEEDS, TESTS = (3, 5, 8, 12), (1, 3, 9)
SHIFT = 2.0  # deviations, of the first group where power is asked for
STEP = 0.5  # of a measure in few values, in deviations
WIDTHS = (1.0, 1.3, 1.6, 1.8)
# The deviations of the baseline and of the groups; of the last kind one group alone.
SPREADS: Mapping[str, tuple[float, float, float]] = {
    "equal": (1.0, 1.0, 1.0),
    "quiet baseline": (BASELINE, 1.0, 1.0),
    "unequal": (1.0, 0.5, 2.0),
    "one five times": (1.0, 1.0, 5.0),
}
POWER = ("quiet baseline", "one five times")
Differences = Float[np.ndarray, "pages tests seeds"]


class Errors(NamedTuple):
    """Of the mean differences of a page."""

    error: Float[np.ndarray, "pages tests"]
    freedom: Float[np.ndarray, "#pages"]


def own(apart: Differences) -> Errors:
    """The error of each group's own differences."""
    pages, _, seeds = apart.shape
    return Errors(apart.std(axis=2, ddof=1) / math.sqrt(seeds), np.full(pages, seeds - 1.0))


def larger(apart: Differences) -> Errors:
    """The larger of its own error and that of all groups together."""
    found = own(apart)
    return found._replace(error=np.maximum(found.error, np.sqrt(np.square(found.error).mean(axis=1, keepdims=True))))


def moderated(apart: Differences) -> Errors:
    """limma's (Smyth 2004): variances drawn to that of the page, as far as they are alike. The
    prior has more degrees of freedom the less the logarithms of the variances differ.
    """
    tests, seeds = apart.shape[1:]
    freedom, variances = seeds - 1.0, np.maximum(apart.var(axis=2, ddof=1), 1e-12)
    if tests == 1:
        return own(apart)
    logs = np.log(variances) - digamma(freedom / 2) + math.log(freedom / 2)
    left = logs.var(axis=1, ddof=1) - polygamma(1, freedom / 2)
    halves = np.geomspace(1e-3, 1e6, 2000)  # of the prior's degrees of freedom, at most two millions
    prior = 2 * np.interp(left, polygamma(1, halves)[::-1], halves[::-1])
    level = np.exp(logs.mean(axis=1) + digamma(prior / 2) - np.log(prior / 2))
    together = prior + freedom
    drawn = ((prior * level)[:, None] + freedom * variances) / together[:, None]
    return Errors(np.sqrt(drawn / seeds), np.minimum(together, tests * freedom))


RULES: Mapping[str, Callable[[Differences], Errors]] = {
    "own": own,
    "the larger of own and pooled": larger,
    "moderated (limma)": moderated,
}


def pages(rng: np.random.Generator, noise: str, spread: str, seeds: int, tests: int, shift: float = 0.0) -> Differences:
    """Differences to the baseline; the last group has the spread's third deviation."""
    base, first, last = SPREADS[spread]
    deviations = np.array([first] * (tests - 1) + [last if tests > 1 or spread != "one five times" else first])
    kind, few = (noise.removesuffix(", few values"), noise.endswith(", few values"))
    values = deviations[:, None] * NOISES[kind](rng, (PAGES, tests, seeds))
    values[:, 0] += shift * deviations[0]
    baseline = base * (NOISES["normal"] if spread == "quiet baseline" else NOISES[kind])(rng, (PAGES, 1, seeds))
    if few:
        # Up or down at random, so that the means stay.
        values, baseline = (STEP * np.floor(each / STEP + rng.uniform(size=each.shape)) for each in (values, baseline))
    return values - baseline


def p_values(apart: Differences, rule: str, width: float) -> Float[np.ndarray, "pages tests"]:
    """1 where all seeds differ by the same."""
    found = RULES[rule](apart)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.abs(apart.mean(axis=2)) / (width * found.error)
    return np.where(found.error > 1e-6, 2 * stdtr(found.freedom[:, None], -np.nan_to_num(ratios, posinf=0.0)), 1.0)


def covered(apart: Differences, rule: str, width: float) -> Float[np.ndarray, " tests"]:
    """How often the interval of each group, where it has one, holds a difference of 0."""
    found = RULES[rule](apart)
    half, known = width * stdtrit(found.freedom, 0.975)[:, None] * found.error, found.error > 1e-6
    return ((np.abs(apart.mean(axis=2)) <= half) & known).sum(axis=0) / np.maximum(known.sum(axis=0), 1)


def marked(p: Float[np.ndarray, "pages tests"], place: int | None = None) -> float:
    """The share of pages on which Holm's test marks any group; or this one."""
    if place is None:
        return float((p.min(axis=1) * p.shape[1] <= 0.05).mean())
    order = np.sort(p, axis=1) * np.arange(p.shape[1], 0, -1)
    adjusted, rank = np.maximum.accumulate(order, axis=1), (p < p[:, [place]]).sum(axis=1)
    return float((adjusted[np.arange(len(p)), rank] <= 0.05).mean())


def rows() -> Iterator[tuple[str, ...]]:
    """By rule and width, the worst cells."""
    rng = np.random.default_rng(0)
    noises = (*SMOOTH, "normal, few values")
    cells = {cell: pages(rng, *cell) for cell in itertools.product(noises, SPREADS, SEEDS, TESTS)}
    alike, many = ([pages(rng, "normal", spread, *of, SHIFT) for spread in POWER] for of in ((5, 3), (6, 9)))
    for rule, width in itertools.product(RULES, WIDTHS):
        wrong = {cell: marked(p_values(apart, rule, width)) for cell, apart in cells.items()}
        shares = {cell: covered(apart, rule, width) for cell, apart in cells.items()}
        normal = [share for cell, each in shares.items() if cell[0] == "normal" for share in each]
        worst = max(wrong, key=wrong.__getitem__)
        power = [marked(p_values(apart, rule, width), 0) for apart in (*alike, *many)]
        every = min(float(each.min()) for each in shares.values())
        names = f"{worst[0]}, {worst[1]}, {worst[2]} seeds, {worst[3]} tests"
        figures = (wrong[worst], min(normal), max(normal), every, *power)
        yield rule, f"{width:g}", *(f"{each:.3f}" for each in figures), names


def main() -> None:
    columns = ("rule", "width", "wrong pages", "normal: lowest", "highest", "lowest anywhere")
    columns += tuple(
        f"finds {SHIFT:g}, {seeds} seeds, {tests} tests, {spread}" for seeds, tests in ((5, 3), (6, 9)) for spread in POWER
    )
    print(f"| {' | '.join((*columns, 'most wrong'))} |\n|{' --- |' * (len(columns) + 1)}")
    for row in rows():
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
