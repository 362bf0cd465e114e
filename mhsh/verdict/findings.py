"""The findings of a comparison: one test a group, one of each change between sweeps, no other."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mhsh.errors import UserError
from mhsh.storage.files import absolute
from mhsh.sweep.axes import BUDGET
from mhsh.text import format_list, sanitize
from mhsh.verdict.decision import HIGHER, LOWER, Decision, PooledDifference, decide, is_bounded, pool
from mhsh.verdict.estimate import (
    MIN_SEEDS,
    Doubt,
    Estimate,
    Replicate,
    Spread,
    difference,
    estimate_finite,
    judge,
    rank_sum,
    spreads,
)
from mhsh.verdict.experiment import Experiment
from mhsh.verdict.fairness import Fairness, fairness, unequal_conditions, unit_mismatch
from mhsh.verdict.groups import Group, names_of
from mhsh.verdict.outcomes import LOSS, Measure, Values, cost_ratios, measure_all, sampling_error
from mhsh.verdict.stability import Stability, stability
from mhsh.verdict.treatment import DEFAULT_TREATMENT
from mhsh.verdict.tuning import values_to_add

# The verdicts on a group against the baseline.
LEVEL = "no significant difference"
TOO_FEW_SEEDS = "too few seeds"
UNTRAINED = "not all trained"  # of the group or of the baseline
UNMEASURED = "no loss yet"  # of the group or of the baseline
OTHER_UNIT = "not in one unit"

FINDING_RULE = (
    "Each group is set against one baseline. If all runs of both that ended have trained, their primary measures are compared, "
    "which is one of all tests of the page. If not, the finding is how many trained, with Wilson's interval and Fisher's exact "
    "test, and the test is Wilcoxon's of ranks, in which those that did not train are the worst. All else is shown with intervals "
    "and not tested. Planned runs that are missing are counted."
)
TREND_RULE = (
    "Where several sweeps or settings are compared, each has its own baseline. A change is that of the difference to the baseline, "
    "seed by seed over the seeds in common, from the first to one that is another sweep or has another setting, of two groups "
    "that differ from their baselines alike: they have one name, or they alone have as many heads a layer, or all heads in as many "
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
    fisher_p_value: float | None = None  # UNTRAINED: the p-value of Fisher's exact test of equal shares
    rank_p_value: float | None = None  # UNTRAINED: the p-value of the rank test, of all tests of the page
    decision: Decision | None = None  # of a page that was judged; None: not tested
    ratios: Mapping[str, Estimate] = dataclasses.field(default_factory=dict)  # `cost_ratios` by axis; not tested

    @property
    def tested_difference(self) -> Estimate | None:
        """Its difference, if that has a test."""
        return None if self.verdict == UNTRAINED else self.difference


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The groups of an experiment against their baseline."""

    section: tuple[str, ...]  # what it is of, as by Experiment.sections; empty where there is one comparison on the page
    experiment: Experiment
    measure: Measure
    values: tuple[Values, ...]  # what was measured, one a group
    treatment: tuple[str, ...]
    baseline: int
    findings: tuple[Finding | None, ...]  # one a group; None for the baseline
    estimates: tuple[Estimate | None, ...]  # the primary measure of those that trained; None: none did
    stabilities: tuple[Stability | None, ...]  # one a group; None: no run logged a training loss

    @property
    def name(self) -> str:
        """The name of its section, printable."""
        return ", ".join(self.section)

    def is_better(self, finding: Finding) -> bool | None:
        """Whether the group ends better than the baseline; None if that is not known."""
        if finding.difference is None:
            return None
        return (finding.difference.mean < 0) == self.measure.lower_is_better

    def is_unfair(self, finding: Finding) -> bool:
        """Whether the group and the baseline are not comparable."""
        return bool(finding.fairness.unequal) or finding.fairness.may_be_size(self.is_better(finding))

    def doubt(self, place: int) -> Doubt:
        """The doubt about the difference of the group at `place` to the baseline."""
        ours, theirs = (self.experiment.groups[each].hidden_gain for each in (place, self.baseline))
        if not self.measure.lower_is_better:  # what hides a higher value of one hides a lower one of the other
            ours, theirs = theirs, ours
        errors = [error for _, error in (ours, theirs) if math.isfinite(error)]
        sampled = sampling_error(*(self.values[each] for each in (place, self.baseline)))
        error, resolution = math.hypot(sampled, *errors), self.measure.resolution
        return Doubt(ours[0] - theirs[0], error, resolution, math.isinf(ours[1]), math.isinf(theirs[1]))


@dataclasses.dataclass(frozen=True)
class Change:
    """How much larger a group's difference to its baseline is in one section than in the first."""

    relation: str  # what the two groups have in common, as in `1 head a layer`
    first: str  # names of the sections
    other: str
    groups: tuple[str, str]
    means: tuple[float, float]  # of the two differences, over the replicates that both have
    estimate: Estimate
    doubt: Doubt
    unequal: tuple[str, ...]  # what makes the two sections incomparable


class Page(NamedTuple):
    """The comparisons of one page, and what they say together."""

    comparisons: list[Comparison]
    changes: list[Change]
    pooled: list[PooledDifference]
    tests: int = 1  # whose intervals hold together


def compare(
    experiment: Experiment,
    measure: str = LOSS,
    baseline: str | None = None,
    treatment: Sequence[str] = DEFAULT_TREATMENT,
    section: tuple[str, ...] = (),
) -> Comparison:
    """Compares every group with the baseline: the group or run called so, or the first group.

    Each difference is judged alone: `judge_page` does it for all comparisons of a page. Raises
    UserError where there is no such baseline or measure.
    """
    place = baseline_place(experiment.groups, baseline, section)
    primary, values = measure_all(experiment, measure)
    estimates = tuple(estimate_finite(each.final.values()) for each in values)
    stabilities = tuple(map(stability, experiment.groups))
    comparison = Comparison(section, experiment, primary, values, tuple(treatment), place, (), estimates, stabilities)
    one_unit = not unit_mismatch(experiment.runs)
    places = range(len(experiment.groups))
    findings = tuple(None if each == place else _finding(comparison, each, one_unit) for each in places)
    return dataclasses.replace(comparison, findings=findings)


def judge_page(comparisons: Sequence[Comparison], margin: float = 0.0) -> Page:
    """The comparisons of one page, of which there is at least one, judged as one family of tests,
    with the changes from the first to each other one that differs from it in one thing. The margin
    is that of MARGIN_RULE.
    """
    changes = _changes(comparisons)
    tested = [
        [(k, found.tested_difference) for k, found in enumerate(each.findings) if found and found.tested_difference]
        for each in comparisons
    ]
    # With the spread of the others by its side a difference may have a test that it has not alone.
    spread = [spreads([estimate for _, estimate in pairs]) for pairs in tested]
    p_values = [
        judge(estimate, beside, each.doubt(place)).p_value
        for each, pairs, of_section in zip(comparisons, tested, spread, strict=True)
        for (place, estimate), beside in zip(pairs, of_section, strict=True)
    ]
    p_values += [change.estimate.p_value for change in changes]
    p_values += [found.rank_p_value for each in comparisons for found in each.findings if found and found.rank_p_value is not None]
    tests = max(1, sum(not math.isnan(p_value) for p_value in p_values))
    judged = [_judge_comparison(*each, tests, margin) for each in zip(comparisons, tested, spread, strict=True)]
    changes = [dataclasses.replace(each, estimate=judge(each.estimate, doubt=each.doubt, tests=tests)) for each in changes]
    return Page(judged, changes, _pool_comparisons(judged), tests)


def margin_of(experiment: Experiment, margin: float | None = None) -> float:
    """The margin that was asked for, else that of the sweeps' plans, else 0. Raises UserError where
    the plans have several.
    """
    planned = {plan.margin for plan in experiment.plans.values() if plan.margin is not None}
    if margin is None and len(planned) > 1:
        several = format_list([f"{each:g}" for each in sorted(planned)])
        raise UserError(f"the plans of these sweeps have several margins, {several}; choose one with --margin")
    return margin if margin is not None else next(iter(planned), 0.0)


def _judge_comparison(
    comparison: Comparison, tested: Sequence[tuple[int, Estimate]], spread_of: Sequence[Spread], tests: int, margin: float
) -> Comparison:
    findings = [
        found
        and dataclasses.replace(found, rank_p_value=None if found.rank_p_value is None else min(1.0, tests * found.rank_p_value))
        for found in comparison.findings
    ]
    for (place, estimate), spread in zip(tested, spread_of, strict=True):
        finding, doubt = findings[place], comparison.doubt(place)
        assert finding is not None
        judged = judge(estimate, spread, doubt, tests)
        choices = [each.choice for each in (finding.group, comparison.experiment.groups[comparison.baseline]) if each.choice]
        decision = decide(
            judged, spread, doubt, tests, margin, lambda half_width, choices=tuple(choices): values_to_add(half_width, choices)
        )
        findings[place] = dataclasses.replace(finding, verdict=_verdict(judged), difference=judged, decision=decision)
    return dataclasses.replace(comparison, findings=tuple(findings))


def baseline_place(groups: Sequence[Group], baseline: str | None, section: tuple[str, ...] = ()) -> int:
    """The place of the group that is called so, or that holds a run called so or at that path; else
    that would be called so without the other sweeps. Raises UserError where there is none.
    """
    if baseline is None:
        return 0
    for place, group in enumerate(groups):
        names = {group.name, *(run.name for run in group.runs), *(str(run.path) for run in group.runs)}
        if names & {baseline, str(absolute(baseline))}:
            return place
    if baseline in (alone := names_of([group.config for group in groups])):
        return alone.index(baseline)
    known, where, advice = format_list([group.name for group in groups]) if groups else "none", "this comparison", ""
    if section:
        where, advice = ", ".join(section), "; name one that every part has, or compare that part alone"
    raise UserError(f"--baseline {sanitize(baseline)} is not a group or run of {where}; allowed: {known}{advice}")


def _finding(comparison: Comparison, place: int, one_unit: bool) -> Finding:
    measure = comparison.measure
    group, other = (comparison.experiment.groups[each] for each in (place, comparison.baseline))
    fair = fairness(group, other, comparison.treatment, group.choice.over if group.choice else "")
    ours, theirs = (comparison.values[each].finite_values for each in (place, comparison.baseline))
    judged = None
    if ours and theirs and one_unit:
        judged = judge(difference(ours, theirs), doubt=comparison.doubt(place))
    ratios = cost_ratios(group, other, measure.split) if one_unit else {}
    found = Finding(group, UNMEASURED if one_unit else OTHER_UNIT, judged, fair, ratios=ratios)
    if group.untrained_members or other.untrained_members:
        from scipy import stats  # which takes a second

        counts = [(len(each.trained_members), len(each.untrained_members)) for each in (group, other)]
        fisher_p_value = float(stats.fisher_exact(counts).pvalue) if all(map(any, counts)) else None
        worst = math.inf if measure.lower_is_better else -math.inf
        ranked = [[*values.values(), *[worst] * len(each.untrained_members)] for values, each in ((ours, group), (theirs, other))]
        rank_p_value = rank_sum(*ranked) if one_unit and min(map(len, ranked)) >= MIN_SEEDS else None
        return dataclasses.replace(found, verdict=UNTRAINED, fisher_p_value=fisher_p_value, rank_p_value=rank_p_value)
    return found if judged is None else dataclasses.replace(found, verdict=_verdict(judged))


def _verdict(difference: Estimate) -> str:
    if difference.seeds < MIN_SEEDS:
        return TOO_FEW_SEEDS
    return LEVEL if not difference.is_significant else LOWER if difference.mean < 0 else HIGHER


def _changes(comparisons: Sequence[Comparison]) -> list[Change]:
    first, *others = comparisons
    changes = []
    others = [each for each in others if len({*first.section} ^ {*each.section}) == 2]
    for (place, group), other in itertools.product(enumerate(first.experiment.groups), others):
        matching_place = _matching_place(first, place, other)
        if matching_place is None:
            continue
        both = _differences(first, place), _differences(other, matching_place)
        common = both[0].keys() & both[1].keys()
        if common:
            ours, theirs = ({each: values[each] for each in common} for values in both)
            doubt = other.doubt(matching_place).subtract(first.doubt(place))
            judged = judge(difference(theirs, ours), doubt=doubt)
            means = statistics.fmean(ours.values()), statistics.fmean(theirs.values())
            names = group.name, other.experiment.groups[matching_place].name
            places = (place, matching_place), (first.baseline, other.baseline)
            pairs = [(first.experiment.groups[one], other.experiment.groups[two]) for one, two in places]
            unequal = unequal_conditions(pairs)
            changes.append(Change(_relation(first, place), first.name, other.name, names, means, judged, doubt, unequal))
    return changes


def _pool_comparisons(comparisons: Sequence[Comparison]) -> list[PooledDifference]:
    """The differences of at least three sweeps whose groups stand to their baselines alike; where a
    sweep is over lengths of training, those of the longest.
    """
    longest: dict[str, Comparison] = {}
    bases = [(each.experiment.groups[each.baseline], each) for each in comparisons if each.experiment.groups]
    for base, each in sorted(bases, key=lambda pair: float(pair[0].settings.get(BUDGET, 0))):
        longest[base.sweep] = each
    matching: dict[Any, list[tuple[Comparison, int, Estimate]]] = {}
    for each in longest.values():
        for place, finding in enumerate(each.findings):
            if finding is not None and finding.tested_difference is not None:
                key = _match_key(each, place), each.measure.name
                matching.setdefault(key, []).append((each, place, finding.tested_difference))
    found = []
    for matched in matching.values():
        entries = [each for each in matched if is_bounded(each[2], each[0].doubt(each[1]))]
        pooled = pool([difference for *_, difference in entries], [each.doubt(place) for each, place, _ in entries])
        if pooled is None or len({each.section for each, _, _ in entries}) < len(entries):
            continue
        pairs = [value for each, place, _ in entries for value in _differences(each, place).values()]
        same = sum(value * pooled[0].mean > 0 for value in pairs)
        plans = [each.experiment.plans.get(each.experiment.groups[place].sweep) for each, place, _ in entries]
        planned = all(plan is not None and plan.pooled for plan in plans)
        relation, names = _relation(*entries[0][:2]), tuple(each.name for each, _, _ in entries)
        left_out = tuple(each.name for each, _, _ in matched if each.name not in names)
        unfair = tuple(each.name for each, place, _ in entries if (finding := each.findings[place]) and each.is_unfair(finding))
        found.append(PooledDifference(relation, names, left_out, *pooled, same, len(pairs), planned, unfair))
    return found


def _matching_place(first: Comparison, place: int, other: Comparison) -> int | None:
    """The place in `other` of the group that stands to its baseline as the one at `place` does: its
    namesake, or where neither has one the only group that stands so; None: there is none.
    """
    key = _match_key(first, place)
    names, theirs = ([group.name for group in each.experiment.groups] for each in (first, other))
    if key is None:
        return None
    if names[place] in theirs:
        namesake = theirs.index(names[place])
        return namesake if _match_key(other, namesake) == key else None
    rivals = [k for k, name in enumerate(names) if name not in theirs and _match_key(first, k) == key]
    found = [k for k, name in enumerate(theirs) if name not in names and _match_key(other, k) == key]
    return found[0] if len(rivals) == len(found) == 1 else None


def _match_key(comparison: Comparison, place: int) -> tuple[str, tuple[str, ...]] | None:
    """The relation of a group to its baseline and what they differ in; None: it is the baseline."""
    finding = comparison.findings[place]
    return None if finding is None else (_relation(comparison, place), finding.fairness.factors)


def _differences(comparison: Comparison, place: int) -> dict[Replicate, float]:
    """The differences to the baseline by replicate; empty for the baseline, and where there is no
    difference that is tested.
    """
    finding = comparison.findings[place]
    if finding is None or finding.tested_difference is None:
        return {}
    ours, theirs = (comparison.values[each].finite_values for each in (place, comparison.baseline))
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
