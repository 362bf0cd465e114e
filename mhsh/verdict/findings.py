"""What a comparison finds: one test a group, one of each change between sweeps, and no other."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Sequence

from mhsh.errors import UserError
from mhsh.storage.files import absolute
from mhsh.text import format_list, sanitize
from mhsh.verdict.estimate import MIN_SEEDS, Estimate, Replicate, difference, fisher, holm, known_estimate
from mhsh.verdict.experiment import Experiment, Group
from mhsh.verdict.fairness import DEFAULT_TREATMENT, Fairness, fairness, other_unit, unequal_sections
from mhsh.verdict.outcomes import LOSS, Measured, measure_all, sampling_error

# The verdicts on a group against the baseline.
LOWER, HIGHER = "lower", "higher"
LEVEL = "no significant difference"
TOO_FEW_SEEDS = "too few seeds"
UNTRAINED = "not all trained"  # of the group or of the baseline
UNMEASURED = "no loss yet"  # of the group or of the baseline
OTHER_UNIT = "not in one unit"

FINDING_RULE = (
    "Each group is set against one baseline. If all runs of both that ended have trained, their primary measures are compared: "
    "that is the only test, and its p-values are corrected for all groups on the page (Holm 1979). If not, the finding is how "
    "many trained, with Wilson's interval and Fisher's exact test, and the losses of those that did are shown without a verdict. "
    "All else is shown with intervals and not tested. Planned runs that are missing are counted."
)
TREND_RULE = (
    "Where several sweeps or settings are compared, each has its own baseline. A change is that of the difference to the baseline, "
    "seed by seed over the seeds in common, from the first to one that is another sweep or has another setting, of two groups "
    "that stand to their baselines alike: they have one name, or they alone have as many heads a layer, or all heads in as many "
    "layers. It is tested with the findings of the page. It is comparable if nothing differs between the sections but their "
    "configs and what follows from these: not the code, the numeric settings, or the text and batches of equal configs."
)


@dataclasses.dataclass(frozen=True)
class Finding:
    """One group against the baseline."""

    group: Group
    verdict: str
    difference: Estimate | None  # group minus baseline; None if there is none
    fairness: Fairness
    trained: float | None = None  # UNTRAINED: the p-value of Fisher's exact test of equal shares

    @property
    def tested(self) -> Estimate | None:
        """Its difference, if that has a test."""
        return None if self.verdict == UNTRAINED else self.difference


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The groups of an experiment against their baseline."""

    section: tuple[str, ...]  # what it is of, as by Experiment.sections; empty where there is one comparison on the page
    experiment: Experiment
    measured: Measured
    treatment: tuple[str, ...]
    baseline: int
    findings: tuple[Finding | None, ...]  # one a group; None for the baseline
    estimates: tuple[Estimate | None, ...]  # the primary measure of those that trained; None: none did

    @property
    def name(self) -> str:
        """Of its section, printable."""
        return ", ".join(self.section)

    def hidden(self, place: int) -> tuple[float, float]:
        """How much lower a group and the baseline may be where they are tuned on a finer grid; of a
        measure of which more is better, how much lower the other one may be beside them.
        """
        ours, theirs = self.experiment.groups[place].hidden, self.experiment.groups[self.baseline].hidden
        return (ours, theirs) if self.measured.measure.lower_is_better else (theirs, ours)

    def sampling_error(self, place: int) -> float:
        """How far its difference to the baseline may be off because validation is a sample."""
        return sampling_error(*(self.measured.values[each] for each in (place, self.baseline)))


@dataclasses.dataclass(frozen=True)
class Change:
    """How much larger a group's difference to its baseline is in one section than in the first."""

    relation: str  # what the two groups have in common, as in `1 head a layer`
    first: str  # names of the sections
    other: str
    groups: tuple[str, str]
    means: tuple[float, float]  # of the two differences, over the replicates that both have
    estimate: Estimate
    unequal: tuple[str, ...]  # what makes the two sections incomparable


def compare(
    experiment: Experiment,
    measure: str = LOSS,
    target: float | None = None,
    baseline: str | None = None,
    treatment: Sequence[str] = DEFAULT_TREATMENT,
    section: tuple[str, ...] = (),
) -> Comparison:
    """Compares every group with the baseline: the group or run called so, or the first group.

    Its p-values are not corrected: `judge_page` does that for all comparisons of a page.

    Raises:
      UserError: there is no such baseline, measure or target.
    """
    place = baseline_place(experiment.groups, baseline)
    measured = measure_all(experiment, measure, target, place)
    estimates = tuple(known_estimate(values.final.values()) for values in measured.values)
    comparison = Comparison(section, experiment, measured, tuple(treatment), place, (), estimates)
    one_unit = not other_unit(experiment.runs)
    places = range(len(experiment.groups))
    findings = tuple(None if each == place else _finding(comparison, each, one_unit) for each in places)
    return dataclasses.replace(comparison, findings=findings)


def judge_page(comparisons: Sequence[Comparison]) -> tuple[list[Comparison], list[Change]]:
    """The comparisons of one page, of which there is at least one, and the changes from the first
    to each other one that differs from it in one thing; with p-values corrected for all of these
    tests, and verdicts by them.
    """
    changes = _changes(comparisons)
    tested = [finding.tested for each in comparisons for finding in each.findings if finding is not None and finding.tested]
    p_values = iter(holm([estimate.p_value for estimate in (*tested, *(change.estimate for change in changes))]))

    def corrected(apart: Estimate) -> Estimate:
        return dataclasses.replace(apart, p_value=next(p_values))

    def judged(finding: Finding | None) -> Finding | None:
        if finding is None or finding.tested is None:
            return finding
        apart = corrected(finding.tested)
        return dataclasses.replace(finding, verdict=_verdict(apart), difference=apart)

    pages = [dataclasses.replace(each, findings=tuple(map(judged, each.findings))) for each in comparisons]
    return pages, [dataclasses.replace(each, estimate=corrected(each.estimate)) for each in changes]


def baseline_place(groups: Sequence[Group], baseline: str | None) -> int:
    """The place of the group that is called so, or that holds a run called so or at that path.

    Raises:
      UserError: there is none.
    """
    if baseline is None:
        return 0
    for place, group in enumerate(groups):
        if baseline == group.name or any(baseline in (run.name, str(run.path)) for run in group.runs):
            return place
        if any(str(absolute(baseline)) == str(run.path) for run in group.runs):
            return place
    known = format_list([group.name for group in groups]) if groups else "none"
    raise UserError(f"--baseline {sanitize(baseline)} is no group or run of this comparison; allowed: {known}")


def _finding(comparison: Comparison, place: int, one_unit: bool) -> Finding:
    measured = comparison.measured
    group, other = (comparison.experiment.groups[each] for each in (place, comparison.baseline))
    fair = fairness(group, other, comparison.treatment, group.choice.over if group.choice else "")
    ours, theirs = (
        {key: value for key, value in measured.values[each].final.items() if math.isfinite(value)}
        for each in (place, comparison.baseline)
    )
    apart = None
    if ours and theirs and one_unit:
        resolution = measured.measure.resolution + comparison.sampling_error(place)
        apart = difference(ours, theirs, resolution=resolution, hidden=comparison.hidden(place))
    if group.untrained or other.untrained:
        counts = [(len(each.trained), len(each.trained) + len(each.untrained)) for each in (group, other)]
        p_value = fisher(*counts[0], *counts[1]) if all(total for _, total in counts) else None
        return Finding(group, UNTRAINED, apart, fair, p_value)
    if apart is None:
        return Finding(group, UNMEASURED if one_unit else OTHER_UNIT, None, fair)
    return Finding(group, _verdict(apart), apart, fair)


def _verdict(apart: Estimate) -> str:
    if apart.seeds < MIN_SEEDS:
        return TOO_FEW_SEEDS
    return LEVEL if not apart.is_significant else LOWER if apart.mean < 0 else HIGHER


def _changes(comparisons: Sequence[Comparison]) -> list[Change]:
    first, *others = comparisons
    changes = []
    others = [each for each in others if len({*first.section} ^ {*each.section}) == 2]
    for (place, group), other in itertools.product(enumerate(first.experiment.groups), others):
        counterplace = _counterplace(first, place, other)
        if counterplace is None:
            continue
        ours, theirs = _differences(first, place), _differences(other, counterplace)
        both = ours.keys() & theirs.keys()
        if both:
            # A difference is too high by what the grid of its group hides, and too low by what
            # that of its baseline hides.
            high, low = other.hidden(counterplace)
            first_high, first_low = first.hidden(place)
            resolution = first.sampling_error(place) + other.sampling_error(counterplace)
            apart = difference(theirs, ours, resolution=resolution, hidden=(high + first_low, low + first_high))
            means = statistics.fmean(ours[each] for each in both), statistics.fmean(theirs[each] for each in both)
            names = group.name, other.experiment.groups[counterplace].name
            alike = (place, counterplace), (first.baseline, other.baseline)
            pairs = [(first.experiment.groups[one], other.experiment.groups[two]) for one, two in alike]
            unequal = unequal_sections(pairs)
            changes.append(Change(_relation(first, place), first.name, other.name, names, means, apart, unequal))
    return changes


def _counterplace(first: Comparison, place: int, other: Comparison) -> int | None:
    """The place in `other` of the group that stands to its baseline as the one at `place` does: its
    namesake, or where neither has one the only group that stands so; None: there is none.
    """
    stand = _stand(first, place)
    names, theirs = ([group.name for group in each.experiment.groups] for each in (first, other))
    if stand is None:
        return None
    if names[place] in theirs:
        namesake = theirs.index(names[place])
        return namesake if _stand(other, namesake) == stand else None
    rivals = [k for k, name in enumerate(names) if name not in theirs and _stand(first, k) == stand]
    found = [k for k, name in enumerate(theirs) if name not in names and _stand(other, k) == stand]
    return found[0] if len(rivals) == len(found) == 1 else None


def _stand(comparison: Comparison, place: int) -> tuple[str, tuple[str, ...]] | None:
    """The relation of a group to its baseline and what they differ in; None: it is the baseline."""
    finding = comparison.findings[place]
    return None if finding is None else (_relation(comparison, place), finding.fairness.factors)


def _differences(comparison: Comparison, place: int) -> dict[Replicate, float]:
    """By replicate; empty for the baseline, and where not all runs trained."""
    finding = comparison.findings[place]
    if finding is None or finding.verdict == UNTRAINED:
        return {}
    ours, theirs = (comparison.measured.values[each].final for each in (place, comparison.baseline))
    return {replicate: ours[replicate] - theirs[replicate] for replicate in ours if replicate in theirs}


def _relation(comparison: Comparison, place: int) -> str:
    """All heads in one layer are 12 heads a layer in one size and 24 in the next; one head a layer
    is one head a layer in each.
    """
    model, base = (comparison.experiment.groups[each].config.model for each in (place, comparison.baseline))
    schemes = [] if model.residual == base.residual else [model.residual]
    if model.num_layers < base.num_layers:
        return format_list([f"{model.num_layers} layer{'s' * (model.num_layers > 1)}", *schemes])
    return format_list([f"{model.num_heads} head{'s' * (model.num_heads > 1)} a layer", *schemes])
