"""What a comparison found: one test a group, and no other."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from mhsh.errors import UserError
from mhsh.files import absolute
from mhsh.text import sanitize
from mhsh.verdict.conditions import DEFAULT_TREATMENT, Fairness, different_tasks, fairness
from mhsh.verdict.estimate import MIN_SEEDS, Estimate, difference, fisher, holm, known_estimate
from mhsh.verdict.experiment import Experiment, Group
from mhsh.verdict.measures import LOSS, Measured, measure_all
from mhsh.verdict.tuning import Choice
from mhsh.verdict.words import format_list

# The verdicts on a group against the baseline.
LOWER, HIGHER = "lower", "higher"
LEVEL = "not told apart"
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


@dataclasses.dataclass(frozen=True)
class Finding:
    """One group against the baseline."""

    group: Group
    verdict: str
    difference: Estimate | None  # group minus baseline; None if there is none
    fairness: Fairness
    trained: float | None  # UNTRAINED: the p-value of Fisher's exact test of equal shares


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The groups of an experiment against their baseline."""

    name: str  # printable; empty where there is one comparison on the page
    experiment: Experiment
    measured: Measured
    choices: tuple[Choice, ...]  # one a group; empty without --over
    treatment: tuple[str, ...]
    baseline: int
    findings: tuple[Finding | None, ...]  # one a group; None for the baseline
    estimates: tuple[Estimate | None, ...]  # the primary measure of those that trained; None: none did


def compare(
    experiment: Experiment,
    measure: str = LOSS,
    target: float | None = None,
    baseline: str | None = None,
    treatment: Sequence[str] = DEFAULT_TREATMENT,
    choices: Sequence[Choice] = (),
    name: str = "",
) -> Comparison:
    """Compares every group with the baseline: the group or run called so, or the first group.

    Its p-values are not corrected: `corrected` does that for all comparisons of a page.

    Raises:
      UserError: there is no such baseline, measure or target.
    """
    measured = measure_all(experiment, measure, target)
    place = baseline_place(experiment.groups, baseline)
    unit = different_tasks(experiment.runs)
    estimates = tuple(known_estimate(values.final.values()) for values in measured.values)
    findings = tuple(
        None if index == place else _finding(experiment.groups, measured, index, place, treatment, choices, unit is None)
        for index in range(len(experiment.groups))
    )
    return Comparison(name, experiment, measured, tuple(choices), tuple(treatment), place, findings, estimates)


def corrected(comparisons: Sequence[Comparison], others: Sequence[float] = ()) -> tuple[list[Comparison], list[float]]:
    """The comparisons of one page, with p-values corrected for all of its tests, and verdicts by
    them. `others` are the p-values of the page's other tests, which are corrected with them.
    """
    tested = [
        (place, index, finding.difference)
        for place, each in enumerate(comparisons)
        for index, finding in enumerate(each.findings)
        if finding is not None and finding.difference is not None and finding.verdict != UNTRAINED
    ]
    adjusted = holm([*(apart.p_value for _, _, apart in tested), *others])
    changed: dict[tuple[int, int], Estimate] = {
        (place, index): dataclasses.replace(apart, p_value=p_value)
        for (place, index, apart), p_value in zip(tested, adjusted[: len(tested)], strict=True)
    }
    judged = [
        dataclasses.replace(
            each,
            findings=tuple(
                _judged(finding, changed[place, index]) if finding is not None and (place, index) in changed else finding
                for index, finding in enumerate(each.findings)
            ),
        )
        for place, each in enumerate(comparisons)
    ]
    return judged, adjusted[len(tested) :]


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


def _finding(
    groups: Sequence[Group],
    measured: Measured,
    index: int,
    baseline: int,
    treatment: Sequence[str],
    choices: Sequence[Choice],
    one_unit: bool,
) -> Finding:
    group, other = groups[index], groups[baseline]
    fair = fairness(group, other, treatment, choices[index].over if choices else "")
    ours, theirs = (
        {key: value for key, value in measured.values[place].final.items() if math.isfinite(value)} for place in (index, baseline)
    )
    apart = None
    if ours and theirs and one_unit:
        hidden = (choices[index].hidden, choices[baseline].hidden) if choices else (0.0, 0.0)
        apart = difference(ours, theirs, resolution=measured.measure.resolution, hidden=hidden)
    if group.untrained or other.untrained:
        counts = [(len(each.trained), len(each.trained) + len(each.untrained)) for each in (group, other)]
        p_value = fisher(*counts[0], *counts[1]) if all(total for _, total in counts) else None
        return Finding(group, UNTRAINED, apart, fair, p_value)
    if not one_unit:
        return Finding(group, OTHER_UNIT, None, fair, None)
    if apart is None:
        return Finding(group, UNMEASURED, None, fair, None)
    return _judged(Finding(group, LEVEL, apart, fair, None), apart)


def _judged(finding: Finding, apart: Estimate) -> Finding:
    if not apart.can_tell:
        verdict = TOO_FEW_SEEDS if apart.seeds < MIN_SEEDS else LEVEL
    else:
        verdict = LEVEL if not apart.is_significant else LOWER if apart.mean < 0 else HIGHER
    return dataclasses.replace(finding, verdict=verdict, difference=apart)


def lower_is_better(measure: str) -> bool:
    """Whether smaller values of a metric are better: of losses and perplexities."""
    return measure == LOSS or measure.endswith(("loss", "perplexity"))
