"""Everything one report says, computed once from the loaded runs; the table, the page and the
pictures only show it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from mhsh.errors import UserError
from mhsh.files import absolute
from mhsh.report.compare.fairness import LedgerRow, config_differences, ledger, marks, verdict
from mhsh.report.compare.groups import Group, group_runs
from mhsh.report.compare.headline import Headline, write_headline
from mhsh.report.compare.targets import Standing, measure
from mhsh.report.render.format import format_list
from mhsh.report.render.sanitize import sanitize
from mhsh.report.runs.downsample import most_points
from mhsh.report.runs.loading import Loaded, Run
from mhsh.report.runs.summary import Summary, summarize


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The content of a report, in the order in which the runs were named."""

    runs: tuple[Run, ...]
    summaries: tuple[Summary, ...]  # one for each run
    groups: tuple[Group, ...]  # by GROUP_RULE, in the order of their first runs
    standing: Standing  # what the groups came to, and against the baseline
    headline: Headline
    differences: tuple[LedgerRow, ...]  # config fields that differ between groups
    ledger: tuple[LedgerRow, ...]  # every condition, equal or not; differences that matter first
    marks: tuple[str, ...]  # differences that matter, a sentence each, to stand beside the curves
    problems: tuple[str, ...]  # one line each: folders that could not be opened, then damage in those that could

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


def compare(loaded: Loaded, target: float | None = None, baseline: str | None = None) -> Comparison:
    """Puts the runs into groups, measures them against `baseline` (a run's or group's name; None:
    the first group), and words it.

    Raises:
      UserError: no run or group is called `baseline`, or the target is no finite loss.
    """
    runs, summaries, groups = loaded.runs, tuple(summarize(run) for run in loaded.runs), group_runs(loaded.runs)
    if target is not None and not math.isfinite(target):
        raise UserError(f"--target {target} is no loss; give nats per predicted token, such as 2.5")
    standing = measure(runs, groups, target, _place(runs, groups, baseline))
    rows = ledger(runs, groups)
    ranked = [groups[place] for place in sorted(standing.ranked)]
    fair = verdict(rows if len(ranked) == len(groups) else ledger(runs, ranked))
    differences = config_differences(runs, groups)
    return Comparison(
        runs=runs,
        summaries=summaries,
        groups=groups,
        standing=standing,
        headline=write_headline(runs, summaries, groups, standing, differences, fair),
        differences=differences,
        ledger=rows,
        marks=marks(rows),
        problems=loaded.refused + tuple(problem for run in runs for problem in run.problems),
    )


def _place(runs: Sequence[Run], groups: Sequence[Group], baseline: str | None) -> int:
    """Where the baseline's group is; a group's own name counts before a run's, a run's before its
    folder's.
    """
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
    raise UserError(f"--baseline {sanitize(baseline)} is no run of this comparison; allowed: {known}")
