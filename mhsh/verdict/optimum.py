"""The best of a grid of rates, and how much lower the loss may be between its points."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit

from mhsh.verdict.estimate import Key

# In octaves of the rate. A parabola fits near the optimum alone; the noise of far rates is another.
FIT_REACH, NOISE_REACH, FINEST_STEP = 1.0, 2.0, 0.5
_UPPER = 0.9  # one-sided confidence of `hidden_upper`
_SAME = 1e-6  # octaves

OPTIMUM_RULE = (
    "The best rate is that with the lowest mean loss over the choosing seeds, of the rates at which all of them trained. A "
    "parabola over the logarithm of the rate, fitted to the rates up to an octave away (at least three), says how much lower the loss may "
    "be between the best rate and its neighbours. The 90 % upper bound of that, from the noise of the choosing seeds, widens the "
    "interval of a difference on the side that is in favour of the shape. There is no bound where the best rate is the lowest or "
    "the highest that was tried, or where fewer than three rates trained."
)


@dataclasses.dataclass(frozen=True)
class Optimum:
    """The best rate of a grid. Losses are in the unit of the losses given."""

    rate: float
    loss: float  # mean over the choosing seeds
    fitted_rate: float  # where the parabola is lowest, between the neighbours of `rate`
    fitted_range: tuple[float, float]  # the rates that the choosing seeds cannot tell from it
    hidden: float  # how much lower the parabola is at `fitted_rate` than at `rate`
    hidden_upper: float  # upper bound of how much lower the loss is between the neighbours; inf if there is none
    at_edge: bool  # no lower or no higher rate was tried


def find_optimum(losses: Mapping[float, Mapping[Key, float]], reporting: Sequence[float] = ()) -> Optimum | None:
    """The optimum by OPTIMUM_RULE; None if there is no rate at which all choosing seeds trained.

    Args:
      losses: by rate and choosing seed; not finite, or absent, where a run did not train.
      reporting: losses of several seeds at one rate: the noise, where a single seed chooses.
    """
    keys, rates = sorted(set().union(*losses.values())), sorted(losses)
    trained = [rate for rate in rates if all(math.isfinite(losses[rate].get(key, math.nan)) for key in keys)]
    if not trained or not keys:
        return None
    table = np.array([[losses[rate][key] for key in keys] for rate in trained])
    means = table.mean(axis=1)
    best = int(means.argmin())
    octaves = np.log2(np.array(trained) / trained[best])
    away = abs(np.arange(len(trained)) - best)
    near = (away <= 1) | (abs(octaves) <= FIT_REACH + _SAME)
    if near.sum() < 3:  # the best is the first or last that trained
        near = away <= 2
    if near.sum() < 3:
        at_edge = trained[best] in (rates[0], rates[-1])
        return Optimum(trained[best], float(means[best]), trained[best], (rates[0], rates[-1]), 0.0, math.inf, at_edge)
    error = _noise(table[abs(octaves) <= NOISE_REACH + _SAME], reporting) / math.sqrt(len(keys))
    return _fitted(octaves[near], means[near], error, trained[best], rates)


def _fitted(
    octaves: Float[np.ndarray, " rates"], means: Float[np.ndarray, " rates"], error: float, rate: float, rates: Sequence[float]
) -> Optimum:
    """The optimum near `rate`, which is 0 octaves; `error` is the margin of one mean loss."""
    place = rates.index(rate)
    lower, higher = rates[max(place - 1, 0)], rates[min(place + 1, len(rates) - 1)]
    design = np.vander(octaves, 3)  # x^2, x, 1
    inverse = np.linalg.pinv(design)
    tried = np.linspace(math.log2(lower / rate), math.log2(higher / rate), 129)
    # The parabola above its value at `rate`, as a weighted sum of the mean losses.
    weights = np.stack([tried**2, tried], axis=1) @ inverse[:2]
    above = weights @ means
    lowest = int(above.argmin())
    hidden_upper = np.max(error * np.linalg.norm(weights, axis=1) - above)
    same = tried[above - above[lowest] <= error * np.linalg.norm(weights - weights[lowest], axis=1)]
    at_edge = place in (0, len(rates) - 1)
    return Optimum(
        rate,
        float(means[octaves == 0][0]),
        rate * 2.0 ** float(tried[lowest]),
        (rate * 2.0 ** float(same[0]), rate * 2.0 ** float(same[-1])),
        max(0.0, -float(above[lowest])),
        math.inf if at_edge or math.isnan(error) else max(0.0, float(hidden_upper)),
        at_edge,
    )


def rates_to_add(losses: Mapping[float, Mapping[Key, float]], optimum: Optimum, half_width: float) -> tuple[float, ...]:
    """The rates to try next, until what the grid may hide is at most half of `half_width`, which is
    that of the difference's interval.

    They are the middles (of the logarithm) between the best rate and its neighbours, and an octave
    beyond an edge. There are none where it is small enough, or where the rates are half an octave
    apart: more choosing seeds would then help.
    """
    if optimum.hidden_upper <= half_width / 2:
        return ()
    rates = sorted(losses)
    place = rates.index(optimum.rate)
    beyond = [rate for rate, edge in ((rates[0] / 2, place == 0), (rates[-1] * 2, place == len(rates) - 1)) if edge]
    gaps = [
        pair for pair in itertools.pairwise(rates) if optimum.rate in pair and math.log2(pair[1] / pair[0]) > FINEST_STEP + 0.01
    ]
    return tuple(sorted(float(f"{rate:.3g}") for rate in (*beyond, *(math.sqrt(low * high) for low, high in gaps))))


def _noise(table: Float[np.ndarray, "rates seeds"], reporting: Sequence[float]) -> float:
    """The margin of one run's loss: Student's quantile of _UPPER times the deviation, without what
    a seed adds at all rates. nan if it is not known.
    """
    if table.shape[1] > 1:
        left = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
        freedom = (len(table) - 1) * (table.shape[1] - 1)
    else:
        left = np.array(reporting) - np.mean(reporting) if len(reporting) > 1 else np.zeros(0)
        freedom = len(left) - 1
    if freedom < 1:
        return math.nan
    return float(stdtrit(freedom, _UPPER)) * math.sqrt(np.square(left).sum() / freedom)
