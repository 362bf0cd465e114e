"""How the difference to the baseline changes from one size of the models to another."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mhsh.verdict.estimate import Estimate, estimate, holm
from mhsh.verdict.experiment import Group, Replicate
from mhsh.verdict.findings import UNTRAINED, Comparison
from mhsh.verdict.words import format_list, format_loss, format_signed

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
        interval = f" ({self.estimate.low:+.3f} to {self.estimate.high:+.3f})" if self.estimate.has_interval else ""
        by = f"{format_signed(self.estimate.mean, format_loss)}{interval}"
        names = " and ".join(dict.fromkeys(self.groups))
        return f"{self.relation} ({names}): from {self.first} to {self.other} the difference changes by {by}, {words}."


def changes(comparisons: Sequence[Comparison]) -> list[Change]:
    """From the first comparison to each other one; p-values are corrected for the number of changes
    and for the tests of the comparisons.
    """
    first, *others = comparisons
    found = []
    for place, group in enumerate(first.experiment.groups):
        ours = _differences(first, place)
        for other in others:
            for there, counterpart in enumerate(other.experiment.groups):
                theirs = _differences(other, there)
                common = [replicate for replicate in ours if replicate in theirs]
                relation = _relation(group, first)
                if relation == _relation(counterpart, other) and common:
                    apart = estimate([theirs[each] - ours[each] for each in common])
                    found.append(Change(relation, first.name, other.name, (group.name, counterpart.name), apart))
    tests = sum(finding is not None and finding.difference is not None for each in comparisons for finding in each.findings)
    adjusted = holm([*(each.estimate.p_value for each in found), *([0.0] * tests)])
    return [
        dataclasses.replace(each, estimate=dataclasses.replace(each.estimate, p_value=p_value))
        for each, p_value in zip(found, adjusted, strict=False)
    ]


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
