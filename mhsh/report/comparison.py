"""Everything one report says, computed once from the loaded runs; the table, the page and the pictures only show it."""

from __future__ import annotations

import dataclasses

from mhsh.report.fairness import LedgerRow, conditions, config_differences
from mhsh.report.groups import Group, group_runs
from mhsh.report.headline import Headline, write_headline
from mhsh.report.runs import Loaded, Run
from mhsh.report.summary import Summary, summarize
from mhsh.report.targets import Standing, measure


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The content of a report, in the order in which the runs were named."""

    runs: tuple[Run, ...]
    summaries: tuple[Summary, ...]  # one for each run
    groups: tuple[Group, ...]  # by GROUP_RULE, in the order of their first runs
    standing: Standing  # what the groups came to, and against the baseline
    headline: Headline
    differences: tuple[LedgerRow, ...]  # config fields that differ
    conditions: tuple[LedgerRow, ...]  # what run.json records, equal or not
    problems: tuple[str, ...]  # one line each: folders that could not be opened, then damage in those that could

    @property
    def entropies(self) -> tuple[tuple[float, str], ...]:
        """The distinct unigram entropies (nats per token) of the runs, each with the label of its line in the figures."""
        names: dict[float, list[str]] = {}
        for item in self.summaries:
            if item.unigram_entropy is not None:
                names.setdefault(round(item.unigram_entropy, 4), []).append(item.name)
        if len(names) == 1:
            return tuple((value, f"unigram entropy {value:.3f}") for value in names)
        return tuple((value, f"unigram entropy {value:.3f} ({', '.join(whose)})") for value, whose in names.items())


def compare(loaded: Loaded, target: float | None = None, baseline: int = 0) -> Comparison:
    """Summarizes the runs and words the headline."""
    summaries = tuple(summarize(run) for run in loaded.runs)
    groups = group_runs(loaded.runs)
    differences = config_differences(loaded.runs)
    return Comparison(
        runs=loaded.runs,
        summaries=summaries,
        groups=groups,
        standing=measure(loaded.runs, groups, target, baseline),
        headline=write_headline(loaded.runs, summaries, differences),
        differences=differences,
        conditions=conditions(loaded.runs),
        problems=loaded.refused + tuple(problem for run in loaded.runs for problem in run.problems),
    )
