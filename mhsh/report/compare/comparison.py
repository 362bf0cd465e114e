"""The content of a report, computed once. The table, the page and the pictures only show it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from mhsh.errors import UserError
from mhsh.files import absolute
from mhsh.report.compare.fairness import (
    DEFAULT_TREATMENT,
    Condition,
    check_treatment,
    config_differences,
    config_fields,
    find_conditions,
    marks,
    verdict,
)
from mhsh.report.compare.groups import Group, group_runs
from mhsh.report.compare.headline import Headline, write_headline
from mhsh.report.compare.results import Results, measure_groups
from mhsh.report.runs.downsample import most_points
from mhsh.text import sanitize
from mhsh.verdict.runs import Loaded, Run, with_pretraining
from mhsh.verdict.summary import Summary, summarize
from mhsh.verdict.words import format_list


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The content of a report, in the order in which the runs were named."""

    runs: tuple[Run, ...]
    summaries: tuple[Summary, ...]  # one for each run
    groups: tuple[Group, ...]  # by GROUP_RULE, in the order of their first runs
    results: Results  # of every group, and its differences to the baseline
    headline: Headline
    config_fields: tuple[Condition, ...]  # every field of the configs
    conditions: tuple[Condition, ...]  # every condition, equal or not; differences that matter first
    marks: tuple[str, ...]  # differences that matter, a sentence each, to stand beside the curves
    problems: tuple[str, ...]  # one line each: folders that could not be opened, then damage in those that could
    pretraining: bool  # whether every x-axis counts what the runs started from

    @property
    def axis_suffix(self) -> str:
        """What follows the name of every x-axis."""
        return ", with pre-training" if self.pretraining else ""

    @property
    def drawn_points(self) -> int:
        """How many points of each curve are drawn at most, and stand in curves.csv."""
        return most_points(sum(bool(len(curve)) for run in self.runs for curve in run.curves.values()))

    @property
    def entropies(self) -> tuple[tuple[float, str], ...]:
        """The distinct unigram entropies (nats per token) of the runs, each with the label of its
        line in the figures.
        """
        names: dict[float, list[str]] = {}
        for item in self.summaries:
            if item.unigram_entropy is not None:
                names.setdefault(round(item.unigram_entropy, 4), []).append(item.name)
        if len(names) == 1:
            return tuple((value, f"unigram entropy {value:.3f}") for value in names)
        return tuple((value, f"unigram entropy {value:.3f} ({', '.join(whose)})") for value, whose in names.items())


def compare(
    loaded: Loaded,
    target: float | None = None,
    baseline: str | None = None,
    treatment: Sequence[str] = DEFAULT_TREATMENT,
    pretraining: bool = False,
) -> Comparison:
    """Groups the runs and compares them with `baseline`: the name of a run or group, or None for
    the first group. `treatment`: what is meant to differ, fields of a config or `shape`.
    `pretraining`: whether every x-axis counts what the runs started from.

    Raises:
      UserError: no run or group is called `baseline`, no field as in `treatment`, or the target is
        no finite loss.
    """
    if pretraining:
        loaded = with_pretraining(loaded)
    runs, summaries, groups = loaded.runs, tuple(summarize(run) for run in loaded.runs), group_runs(loaded.runs)
    if target is not None and not math.isfinite(target):
        raise UserError(f"--target {target} is not a finite loss; give nats per predicted token, such as 2.5")
    check_treatment(treatment)
    results = measure_groups(runs, groups, target, _baseline_index(runs, groups, baseline))
    conditions = find_conditions(runs, groups, treatment)
    ranked = [groups[place] for place in sorted(results.ranked)]
    fair = verdict(conditions if len(ranked) == len(groups) else find_conditions(runs, ranked, treatment), treatment)
    fields = config_fields(runs, groups)
    return Comparison(
        runs=runs,
        summaries=summaries,
        groups=groups,
        results=results,
        headline=write_headline(runs, summaries, groups, results, config_differences(fields), fair),
        config_fields=fields,
        conditions=conditions,
        marks=marks(conditions),
        problems=loaded.refused + tuple(problem for run in runs for problem in run.problems),
        pretraining=pretraining,
    )


def _baseline_index(runs: Sequence[Run], groups: Sequence[Group], baseline: str | None) -> int:
    """The index of the baseline's group. Names of groups come first, then of runs, then folders."""
    if baseline is None:
        return 0
    names = (
        {group.name: place for place, group in enumerate(groups)},
        {runs[index].name: place for place, group in enumerate(groups) for index in group.runs},
        {str(runs[index].path): place for place, group in enumerate(groups) for index in group.runs},
    )
    for kind, wanted in zip(names, (baseline, baseline, str(absolute(baseline))), strict=True):
        if wanted in kind:
            return kind[wanted]
    known = format_list(list(dict.fromkeys([*names[0], *names[1]]))) if groups else "none"
    raise UserError(f"--baseline {sanitize(baseline)} is not a run of this comparison; allowed: {known}")
