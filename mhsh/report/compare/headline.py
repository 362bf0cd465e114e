"""A report's claim in words: which group ended lowest, by how much, how sure that is, and whether
the losses are comparable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mhsh import outcome, text
from mhsh.report.compare import fairness
from mhsh.report.compare.fairness import Condition
from mhsh.report.compare.groups import Group
from mhsh.report.compare.results import FINAL_NAMES, Results
from mhsh.report.estimate import Estimate, difference, holm
from mhsh.verdict.runs import Run
from mhsh.verdict.summary import Summary
from mhsh.verdict.words import (
    format_interval,
    format_list,
    format_loss,
    format_loss_difference,
    format_names,
    format_percent,
)

UNIT = "nats per predicted token"


@dataclasses.dataclass(frozen=True)
class Headline:
    """The report's claim and its limits, as plain text (not escaped).

    If it names a winner, the first two sentences say how sure that is and whether the losses are
    comparable.
    """

    title: str
    sentences: tuple[str, ...]
    measure: str | None  # what the title compares; None if nothing is compared


@dataclasses.dataclass(frozen=True)
class _Ranked:
    """A group of which every run has a finite final loss."""

    name: str
    loss: float  # the mean over its runs
    by_seed: dict[int, float]
    summaries: tuple[Summary, ...]


def write_headline(
    runs: Sequence[Run],
    summaries: Sequence[Summary],
    groups: Sequence[Group],
    results: Results,
    differences: Sequence[Condition],
    fair: str,
) -> Headline:
    """Puts a comparison into words. `fair` is the verdict on the ranked groups.

    It names a winner only if the losses are in one unit and at least two groups are finite.
    """
    drawn = [members for group in groups if (members := [runs[index] for index in group.runs if runs[index].drawable])]
    untrained = [name for group in groups if (name := _untrained(group, summaries))]
    places = [place for place in results.ranked if not _untrained(groups[place], summaries)] or list(results.ranked)
    ranking = [_ranked(groups[place], results, place, summaries) for place in places]
    task = fairness.different_tasks([run for members in drawn for run in members])
    worth = (
        _data_sentence(drawn),
        _amount_sentence([items for group in groups if (items := _measured(group, summaries))]),
        _config_sentence(differences, len(runs)),
        _size_sentence(summaries),
        *_outcome_sentences(summaries, groups),
        _problem_sentence(summaries),
    )
    if task:
        title = f"No winner is named: {task}, so the losses are not in one unit"
        return Headline(title, tuple(filter(None, worth)), None)
    if len(ranking) < 2:
        return Headline(_lone_title(ranking, untrained, results.measure), tuple(filter(None, worth)), None)
    # As in the tables: the baseline is what is subtracted.
    one, other = (ranking[1], ranking[0]) if places[0] == results.baseline else (ranking[0], ranking[1])
    against_lowest = holm([difference(each.by_seed, ranking[0].by_seed) for each in ranking[1:]])
    nearest = against_lowest[0]
    assert nearest is not None
    # Of the other sign, and significant where that one is.
    apart = dataclasses.replace(difference(one.by_seed, other.by_seed), p_value=nearest.p_value)
    sentences = (
        _sure_sentence(one, other, apart, len(ranking) - 1),
        fair,
        _others_sentence(ranking, against_lowest, results.measure),
        *worth,
    )
    title = _title(ranking, apart, results.measure)
    if untrained and len(places) < len(groups):
        title = _tiers(untrained, ranking, against_lowest, title)
    title += _but(ranking, results.measure, fairness.same_data(drawn))
    return Headline(title, tuple(filter(None, sentences)), results.measure)


def _ranked(group: Group, results: Results, place: int, summaries: Sequence[Summary]) -> _Ranked:
    final = results.scores[place].final
    assert final.estimate is not None
    return _Ranked(group.name, final.estimate.mean, dict(final.each), tuple(summaries[index] for index in group.runs))


def _measured(group: Group, summaries: Sequence[Summary]) -> list[Summary]:
    return [summaries[index] for index in group.runs if summaries[index].outcome != outcome.NO_METRICS]


def _untrained(group: Group, summaries: Sequence[Summary]) -> str | None:
    """The group's name if any of its runs diverged or stayed on the plateau; else None."""
    failed = [index for index in group.runs if summaries[index].outcome in (outcome.ON_PLATEAU, outcome.DIVERGED)]
    if not failed:
        return None
    return group.name if len(failed) == len(group.runs) else f"{group.name} (in {len(failed)} of {len(group.runs)} runs)"


def _tiers(untrained: Sequence[str], ranking: Sequence[_Ranked], against_lowest: Sequence[Estimate | None], title: str) -> str:
    """Who did not train, who did, and whether those who did differ significantly. `title` says
    which of them is lowest.
    """
    running = any(item.status == "running" for ranked in ranking for item in ranked.summaries)
    have = "has" if len(untrained) == 1 else "have"
    first = f"{format_names(untrained)} {f'{have} not trained so far' if running else 'did not train'}"
    if any(each is not None and each.is_significant for each in against_lowest):
        return f"{first}; of the others, {title}"
    known = all(each is not None and each.has_interval for each in against_lowest)
    doubt = "no significant difference" if known else "too few seeds to tell them apart"
    spread = format_loss_difference(ranking[-1].loss - ranking[0].loss)
    return f"{first}; {format_names([each.name for each in ranking])} did, within {spread} {UNIT} ({doubt})"


def _title(ranking: Sequence[_Ranked], apart: Estimate, measure: str) -> str:
    first, second = ranking[:2]
    items = [item for ranked in ranking for item in ranked.summaries]
    running = any(item.status == "running" for item in items)
    if second.loss == first.loss:
        equal = [ranked.name for ranked in ranking if ranked.loss == first.loss]
        return f"{format_names(equal)} {'are' if running else 'ended'} level: {measure} {format_loss(first.loss)} {UNIT}"
    gap = second.loss - first.loss
    by = f"{format_loss_difference(gap)} below {second.name}"
    share = f" ({format_percent(gap / second.loss)})" if second.loss > 0 else ""
    doubt = ", no significant difference" if apart.has_interval and not apart.is_significant else ""
    verb = "is lowest so far" if running else "ended lowest"
    return f"{first.name} {verb}: {measure} {format_loss(first.loss)} {UNIT}, {by}{share}{doubt}"


def _but(ranking: Sequence[_Ranked], measure: str, same_data: bool | None) -> str:
    """What the title's claim suffers from."""
    but = ["the runs had different data"] if same_data is False else []
    if len({frozenset(_measured_at(item, measure) for item in ranked.summaries) for ranked in ranking}) > 1:
        but.append("the runs were measured after unequal training")
    return f"; but {format_list(but)}" if but else ""


def _measured_at(item: Summary, measure: str) -> tuple[int | None, float | None]:
    """The step of a run's loss, and the tokens that it was trained on."""
    if measure == FINAL_NAMES["validation"] and item.final_validation:
        return item.final_validation.step, item.tokens
    return item.last_step, item.tokens


def _lone_title(ranking: Sequence[_Ranked], untrained: Sequence[str], measure: str) -> str:
    if not ranking:
        return "No winner is named: no run has a finite final loss"
    (only,) = ranking
    if others := [name for name in untrained if name != only.name]:
        return f"{format_names(others)} did not train; {only.name} did: {measure} {format_loss(only.loss)} {UNIT}"
    return f"{only.name}: {measure} {format_loss(only.loss)} {UNIT}; there is no second finite run to compare it with"


def _sure_sentence(first: _Ranked, second: _Ranked, apart: Estimate, compared: int) -> str:
    """How sure the difference `apart` of the first minus the second is, one of `compared`."""
    if not apart.has_interval:
        few = [ranked.name for ranked in sorted((first, second), key=lambda each: each.loss) if len(ranked.by_seed) < 2]
        return (
            f"How sure: one seed of {format_list(few)}, so no error bar: "
            "how much another seed would change the difference was not measured."
        )
    paired = first.by_seed.keys() == second.by_seed.keys()
    seeds = f"{apart.seeds} seeds, paired" if paired else f"{len(first.by_seed)} and {len(second.by_seed)} seeds"
    interval = f"the 95 % interval of {first.name} minus {second.name}, {format_interval(apart.low, apart.high)}, over {seeds},"
    if apart.is_significant:
        return f"How sure: {interval} excludes zero."
    if apart.excludes_zero:
        return (
            f"How sure: no significant difference among {compared + 1} groups (Holm's correction), though {interval} excludes zero."
        )
    return f"How sure: no significant difference: {interval} includes zero."


def _others_sentence(ranking: Sequence[_Ranked], differences: Sequence[Estimate | None], measure: str) -> str:
    """`differences`: of each other group to the lowest."""
    others = []
    for ranked, apart in zip(ranking[1:], differences, strict=True):
        assert apart is not None
        doubt = ", no significant difference" if apart.has_interval and not apart.is_significant else ""
        others.append(f"{ranked.name} {format_loss(ranked.loss)} (+{format_loss_difference(apart.mean)}{doubt})")
    return f"After it, by {measure}: {format_names(others)}." if len(others) > 1 else ""


def _data_sentence(groups: Sequence[Sequence[Run]]) -> str:
    """`groups`: the runs of each."""
    runs = [run for members in groups for run in members]
    if len(runs) < 2:
        return ""
    same = fairness.same_data(groups)
    if same is None:
        without = [run.name for run in runs if run.recorded("data", "fingerprint") is None]
        return f"Whether the data were equal is not known: no data fingerprint is recorded for {format_names(without)}."
    if same and fairness.same_data([[run] for run in runs]):
        return "All runs had the same data (equal fingerprints)."
    if same:
        return "Every group had the same data, another split for each seed (equal sets of fingerprints)."
    return "The runs had different data (their fingerprints differ), so a difference in loss is not one between the models alone."


def _amount_sentence(groups: Sequence[Sequence[Summary]]) -> str:
    """`groups`: the summaries of each."""
    items = [item for members in groups for item in members]
    if len(items) < 2:
        return ""
    tokens = [item.tokens for item in items]
    unfinished = [f"{item.name} ({item.status})" for item in items if item.status in ("running", "stopped")]
    ending = f" Not finished: {format_names(unfinished)}." if unfinished else ""
    known = [value for value in tokens if value is not None]
    if len(known) < len(tokens):
        return "How many tokens each run was trained on is not recorded for every run." + ending
    if len(set(known)) == 1:
        return f"All runs were trained on {text.count(known[0])} tokens." + ending
    low, high = min(known), max(known)
    if len({frozenset(item.tokens for item in members) for members in groups}) == 1:
        return f"Every group was trained on equal amounts, by seed {low:,.0f} to {high:,.0f} tokens." + ending
    return (
        f"The runs were trained on unequal amounts, {low:,.0f} to {high:,.0f} tokens: the final losses are not at equal cost."
        + ending
    )


def _config_sentence(differences: Sequence[Condition], number: int) -> str:
    if number < 2:
        return ""
    if not differences:
        return "The configs of all runs are equal in every field."
    fields = [row.name for row in differences]
    elsewhere = [field for field in fields if not field.startswith("model.")]
    ending = (
        f"outside the model: {format_names(elsewhere)}."
        if elsewhere
        else "none outside the model: data, optimizer and training settings are equal."
    )
    return f"The configs differ in {len(fields)} field{'s' * (len(fields) > 1)} ({format_names(fields)}); {ending}"


def _size_sentence(summaries: Sequence[Summary]) -> str:
    known = [item.parameters for item in summaries if item.parameters]
    if len(known) < 2:
        return ""
    low, high = min(known), max(known)
    if low == high:
        return f"The models have equally many parameters ({text.count(low)})."
    sizes = f"{text.count(low)} to {text.count(high)}"
    return f"The models have {sizes} parameters: the largest has {format_percent(high / low - 1)} more than the smallest."


def _outcome_sentences(summaries: Sequence[Summary], groups: Sequence[Group]) -> list[str]:
    measured = [item for item in summaries if item.outcome != outcome.NO_METRICS]
    sentences = []
    stuck = [
        f"{item.name} ({_judged(item)}, unigram entropy {format_loss(item.unigram_entropy)})"
        for item in measured
        if item.outcome == outcome.ON_PLATEAU
    ]
    if stuck:
        sentences.append(
            f"On the unigram plateau, that is, not clearly better than token frequencies alone: {format_names(stuck)}."
        )
    diverged = [item.name for item in measured if item.outcome == outcome.DIVERGED]
    if diverged:
        grouped = any(
            len(group.runs) > 1 and summaries[index].outcome == outcome.DIVERGED for group in groups for index in group.runs
        )
        rest = ", nor are other seeds of the same group" if grouped else ""
        sentences.append(f"Diverged (loss not finite at the end), so not ranked{rest}: {format_names(diverged)}.")
    unknown = [item.name for item in measured if item.outcome == outcome.NOT_KNOWN]
    if unknown:
        sentences.append(f"Whether it left the unigram plateau is not known (too little recorded): {format_names(unknown)}.")
    if measured and all(item.outcome == outcome.LEFT for item in measured):
        sentences.append("Every run drawn left the unigram plateau." if len(measured) > 1 else "It left the unigram plateau.")
    return sentences


def _judged(item: Summary) -> str:
    """The loss by which PLATEAU_RULE judges a run."""
    if item.validated_at_end and item.final_validation is not None:
        return f"validation loss {format_loss(item.final_validation.loss)}"
    return f"training loss {format_loss(item.final_train)}"


def _problem_sentence(summaries: Sequence[Summary]) -> str:
    bad = [item.name for item in summaries if item.has_problems]
    return f"Files are missing or damaged for {format_names(bad)}; see the problems below." if bad else ""
