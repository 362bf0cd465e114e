"""The best of a grid of rates, and how much lower the loss may be between its points."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float

from mhsh.verdict.estimate import Key

# In octaves of the rate.
FIT_REACH = 1.0  # a parabola fits near the optimum alone
FINEST_STEP = 0.5
_SAME = 0.05  # what rounded rates are apart

OPTIMUM_RULE = (
    "The best rate is that with the lowest mean loss over the choosing seeds, of the rates at which all of them trained. A "
    "parabola over the logarithm of the rate, fitted to the rates up to an octave away (to at least three), says how much lower "
    "the loss may be between the best rate and its neighbours. That, with its standard error added, widens the interval of a "
    "difference on the side that is in favour of the shape. So do the parabolas through the best rate and two rates on one side, "
    "if one of them says more: losses may rise faster on one side. There is no bound where the best rate is the lowest or the "
    "highest that was tried, where its neighbours are more than an octave away, where fewer than three rates trained, or where "
    "nothing tells the noise of one choosing seed."
)


@dataclasses.dataclass(frozen=True)
class Optimum:
    """The best rate of a grid. Losses are in the unit of the losses given."""

    rate: float
    loss: float  # mean over the choosing seeds
    fitted_rate: float  # where the parabola is lowest, between the neighbours of `rate`
    fitted_range: tuple[float, float]  # the rates whose fitted loss is within a standard error of the lowest
    hidden: float  # how much lower the parabola is at `fitted_rate` than at `rate`
    hidden_upper: float  # its upper bound by OPTIMUM_RULE; inf if there is none
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
    error = _noise(table[near], reporting) / math.sqrt(len(keys))
    if near.sum() < 3 or math.isnan(error):
        at_edge = trained[best] in (rates[0], rates[-1])
        return Optimum(trained[best], float(means[best]), trained[best], (rates[0], rates[-1]), 0.0, math.inf, at_edge)
    return _fitted(octaves, means, near, error, trained[best], rates)


def _fitted(
    octaves: Float[np.ndarray, " rates"],
    means: Float[np.ndarray, " rates"],
    near: Bool[np.ndarray, " rates"],
    error: float,
    rate: float,
    rates: Sequence[float],
) -> Optimum:
    """The optimum near `rate`, which is 0 octaves; `error` is the standard error of a mean loss."""
    place, best = rates.index(rate), int(means.argmin())
    lower, higher = rates[max(place - 1, 0)], rates[min(place + 1, len(rates) - 1)]
    between = np.linspace(math.log2(lower / rate), math.log2(higher / rate), 129)
    # The parabola above its value at `rate`, as a weighted sum of the mean losses.
    weights = np.stack([between**2, between], axis=1) @ np.linalg.pinv(np.vander(octaves[near], 3))[:2]
    above = weights @ means[near]
    lowest = int(above.argmin())
    same = between[above - above[lowest] <= error * np.linalg.norm(weights - weights[lowest], axis=1)]
    hidden = max(0.0, -float(above[lowest]))
    hidden_upper = hidden + error * float(np.linalg.norm(weights[lowest]))
    nearer = between[(between >= between[0] / 2) & (between <= between[-1] / 2)]  # to `rate` than to its neighbours
    for side in (slice(max(0, best - 2), best + 1), slice(best, best + 3)):
        if len(means[side]) == 3:
            one_sided = np.polyval(np.polyfit(octaves[side], means[side], 2), nearer)
            hidden_upper = max(hidden_upper, float(means[best] - one_sided.min()))
    at_edge = place in (0, len(rates) - 1)
    too_far = max(-between[0], between[-1]) > FIT_REACH + _SAME
    return Optimum(
        rate,
        float(means[best]),
        rate * 2.0 ** float(between[lowest]),
        (rate * 2.0 ** float(same[0]), rate * 2.0 ** float(same[-1])),
        hidden,
        math.inf if at_edge or too_far else hidden_upper,
        at_edge,
    )


def rates_to_add(losses: Mapping[float, Mapping[Key, float]], optimum: Optimum, half_width: float) -> tuple[float, ...]:
    """The rates to try next, until what the grid may hide is at most half of `half_width`, which is
    that of the difference's interval without `hidden`.

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
        pair for pair in itertools.pairwise(rates) if optimum.rate in pair and math.log2(pair[1] / pair[0]) > FINEST_STEP + _SAME
    ]
    return tuple(sorted(float(f"{rate:.3g}") for rate in (*beyond, *(math.sqrt(low * high) for low, high in gaps))))


def _noise(table: Float[np.ndarray, "rates seeds"], reporting: Sequence[float]) -> float:
    """The deviation of one run's loss, without what a seed adds at all rates; nan if not known."""
    if table.shape[1] > 1:
        left = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
        freedom = (len(table) - 1) * (table.shape[1] - 1)
    else:
        left = np.array(reporting) - np.mean(reporting) if len(reporting) > 1 else np.zeros(0)
        freedom = len(left) - 1
    if freedom < 1:
        return math.nan
    return math.sqrt(np.square(left).sum() / freedom)
