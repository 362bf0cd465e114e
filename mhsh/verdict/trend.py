"""How the difference to the baseline changes from one size of the models to another."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mhsh.verdict.estimate import Estimate, difference
from mhsh.verdict.experiment import Group, Replicate
from mhsh.verdict.findings import UNTRAINED, Comparison, corrected
from mhsh.verdict.words import format_interval, format_list, format_loss, format_signed

TREND_RULE = (
    "Where several sweeps are named, each is compared with its own baseline. A change between sweeps is that of the difference to "
    "the baseline, seed by seed over the seeds in common, from the first sweep to another, of groups that stand to their baselines "
    "alike: as many heads a layer, or all heads in as many layers. It is tested with the findings of the page."
)


@dataclasses.dataclass(frozen=True)
class Change:
    """How much larger a group's difference to its baseline is in one sweep than in the first."""

    relation: str  # what the two groups have in common, as in `1 head a layer`
    first: str  # names of the sweeps
    other: str
    groups: tuple[str, str]
    estimate: Estimate

    @property
    def sentence(self) -> str:
        """`1 head a layer: from small to large ...`."""
        words = "not told apart from none"
        if self.estimate.is_significant:
            words = "it grows" if self.estimate.mean > 0 else "it falls"
        interval = f" ({format_interval(self.estimate.low, self.estimate.high)})" if self.estimate.has_interval else ""
        by = f"{format_signed(self.estimate.mean, format_loss)}{interval}"
        names = " and ".join(dict.fromkeys(self.groups))
        return f"{self.relation} ({names}): from {self.first} to {self.other} the difference changes by {by}, {words}."


def judge_page(comparisons: Sequence[Comparison]) -> tuple[list[Comparison], list[Change]]:
    """The comparisons of one page, and the changes from the first to each other one, corrected for
    all tests of the page.
    """
    found = changes(comparisons)
    judged, p_values = corrected(comparisons, [each.estimate.p_value for each in found])
    adjusted = [dataclasses.replace(each.estimate, p_value=p_value) for each, p_value in zip(found, p_values, strict=True)]
    return judged, [dataclasses.replace(each, estimate=estimate) for each, estimate in zip(found, adjusted, strict=True)]


def changes(comparisons: Sequence[Comparison]) -> list[Change]:
    """The changes, with p-values that are not corrected."""
    first, *others = comparisons
    found = []
    for place, group in enumerate(first.experiment.groups):
        for other in others:
            for there, counterpart in enumerate(other.experiment.groups):
                ours, theirs = _differences(first, place), _differences(other, there)
                relation = _relation(group, first)
                if relation == _relation(counterpart, other) and ours.keys() & theirs.keys():
                    # A difference is too high by what the grid of its group hides, and too low by
                    # what that of its baseline hides.
                    high, low = _hidden(other, there)
                    first_high, first_low = _hidden(first, place)
                    apart = difference(theirs, ours, hidden=(high + first_low, low + first_high))
                    found.append(Change(relation, first.name, other.name, (group.name, counterpart.name), apart))
    return found


def _hidden(comparison: Comparison, place: int) -> tuple[float, float]:
    """What the grids of a group and of its baseline hide."""
    choices = comparison.choices
    return (choices[place].hidden, choices[comparison.baseline].hidden) if choices else (0.0, 0.0)


def _differences(comparison: Comparison, place: int) -> dict[Replicate, float]:
    """By replicate; empty for the baseline, and where not all runs trained."""
    finding = comparison.findings[place]
    if finding is None or finding.verdict == UNTRAINED:
        return {}
    ours, theirs = (comparison.measured.values[each].final for each in (place, comparison.baseline))
    return {replicate: ours[replicate] - theirs[replicate] for replicate in ours if replicate in theirs}


def _relation(group: Group, comparison: Comparison) -> str:
    """All heads in one layer are 12 heads a layer in one size and 24 in the next; one head a layer
    is one head a layer in each.
    """
    model, base = group.config.model, comparison.experiment.groups[comparison.baseline].config.model
    schemes = [] if model.residual == base.residual else [model.residual]
    if model.num_layers < base.num_layers:
        return format_list([f"{model.num_layers} layer{'s' * (model.num_layers > 1)}", *schemes])
    return format_list([f"{model.num_heads} head{'s' * (model.num_heads > 1)} a layer", *schemes])
