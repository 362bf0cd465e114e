"""What a report claims in plain words: which run ended lowest, by how much, on which measure, and what that is worth."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mhsh import outcome
from mhsh.report import fairness, wording
from mhsh.report.fairness import LedgerRow
from mhsh.report.runs import Run
from mhsh.report.summary import Summary

UNIT = "nats per predicted token"
VALIDATION = "final validation loss"
TRAINING = "final training loss"


@dataclasses.dataclass(frozen=True)
class Headline:
    """The report's claim and everything that limits it, as plain text (not escaped)."""

    title: str
    sentences: tuple[str, ...]
    measure: str | None  # what the title compares; None where nothing is compared


@dataclasses.dataclass(frozen=True)
class _Ranking:
    """Runs from the lowest loss to the highest, on one measure."""

    measure: str
    losses: tuple[tuple[Summary, float], ...]


def write_headline(runs: Sequence[Run], summaries: Sequence[Summary], differences: Sequence[LedgerRow]) -> Headline:
    """Puts a comparison into words. It names a winner only where the losses are in one unit and at least two are finite."""
    drawn = [run for run in runs if run.drawable]
    ranking = _rank(summaries)
    task = fairness.different_tasks(drawn)
    worth = (
        _data_sentence(drawn),
        _amount_sentence([item for item in summaries if item.outcome != outcome.NO_METRICS]),
        _config_sentence(differences, len(runs)),
        _size_sentence(summaries),
        *_outcome_sentences(summaries),
        _problem_sentence(summaries),
    )
    if task:
        title = f"No winner is named: {task}, so the losses are not in one unit"
        return Headline(title, tuple(filter(None, worth)), None)
    if ranking is None or len(ranking.losses) < 2:
        return Headline(_lone_title(ranking), tuple(filter(None, worth)), None)
    sentences = (_others_sentence(ranking), _seed_sentence([item for item, _ in ranking.losses]), *worth)
    return Headline(_title(ranking, fairness.same_data(drawn)), tuple(filter(None, sentences)), ranking.measure)


def _rank(summaries: Sequence[Summary]) -> _Ranking | None:
    """By final validation loss if every run that is compared has one, else by final training loss if every one has that."""
    compared = [item for item in summaries if item.outcome not in (outcome.NO_METRICS, outcome.DIVERGED)]
    measures = (
        (VALIDATION, [item.final_validation.loss if item.final_validation else None for item in compared]),
        (TRAINING, [item.final_train for item in compared]),
    )
    for measure, losses in measures:
        known = [(item, loss) for item, loss in zip(compared, losses, strict=True) if loss is not None]
        if known and len(known) == len(compared):
            return _Ranking(measure, tuple(sorted(known, key=lambda pair: pair[1])))
    return None


def _title(ranking: _Ranking, same_data: bool | None) -> str:
    (first, lowest), (second, next_lowest) = ranking.losses[:2]
    running = any(item.status == "running" for item, _ in ranking.losses)
    gap = next_lowest - lowest
    if gap == 0:
        equal = [item.name for item, loss in ranking.losses if loss == lowest]
        return f"{wording.listing(equal)} {'are' if running else 'ended'} level: {ranking.measure} {wording.loss(lowest)} {UNIT}"
    by = f"{wording.loss_difference(gap)} below {second.name}"
    share = f" ({wording.percent(gap / next_lowest)})" if next_lowest > 0 else ""
    verb = "is lowest so far" if running else "ended lowest"
    title = f"{first.name} {verb}: {ranking.measure} {wording.loss(lowest)} {UNIT}, {by}{share}"
    but = ["the runs had different data"] if same_data is False else []
    if len({_measured_at(item, ranking.measure) for item, _ in ranking.losses}) > 1:
        but.append("the runs were measured after unequal training")
    return f"{title}; but {wording.listing(but)}" if but else title


def _measured_at(item: Summary, measure: str) -> tuple[int | None, float | None]:
    """The step of a run's loss, and the tokens that it was trained on."""
    return (item.final_validation.step if item.final_validation and measure == VALIDATION else item.last_step), item.tokens


def _lone_title(ranking: _Ranking | None) -> str:
    if ranking is None:
        return "No winner is named: no measure is there and finite for the runs to be compared on"
    item, loss = ranking.losses[0]
    return f"{item.name}: {ranking.measure} {wording.loss(loss)} {UNIT}; there is no second finite run to compare it with"


def _others_sentence(ranking: _Ranking) -> str:
    lowest = ranking.losses[0][1]
    others = [f"{item.name} {wording.loss(loss)} (+{wording.loss_difference(loss - lowest)})" for item, loss in ranking.losses[1:]]
    return f"After it, by {ranking.measure}: {', '.join(others)}." if len(others) > 1 else ""


def _seed_sentence(items: Sequence[Summary]) -> str:
    seeds = {item.seed for item in items}
    which = f"seed {seeds.pop()}" if len(seeds) == 1 else "seeds differ between runs and are not grouped here"
    return (
        f"Each run was trained once ({which}), so the differences have no error bar: "
        "how much another seed would change them was not measured."
    )


def _data_sentence(runs: Sequence[Run]) -> str:
    if len(runs) < 2:
        return ""
    same = fairness.same_data(runs)
    if same is None:
        without = [run.name for run in runs if run.recorded("data", "fingerprint") is None]
        return f"Whether the data were equal is not known: no data fingerprint is recorded for {wording.listing(without)}."
    if same:
        return "All runs had the same data (equal fingerprints)."
    return "The runs had different data (their fingerprints differ), so a difference in loss is not one between the models alone."


def _amount_sentence(items: Sequence[Summary]) -> str:
    if len(items) < 2:
        return ""
    tokens = [item.tokens for item in items]
    unfinished = [f"{item.name} ({item.status})" for item in items if item.status in ("running", "stopped")]
    ending = f" Not finished: {', '.join(unfinished)}." if unfinished else ""
    known = [value for value in tokens if value is not None]
    if len(known) < len(tokens):
        return "How many tokens each run was trained on is not recorded for every run." + ending
    if len(set(known)) == 1:
        return f"All runs were trained on {wording.count(known[0])} tokens." + ending
    low, high = min(known), max(known)
    return (
        f"The runs were trained on unequal amounts, {low:,.0f} to {high:,.0f} tokens: the final losses are not at equal cost."
        + ending
    )


def _config_sentence(differences: Sequence[LedgerRow], number: int) -> str:
    if number < 2:
        return ""
    if not differences:
        return "The configs of all runs are equal in every field."
    fields = [row.what for row in differences]
    elsewhere = [field for field in fields if not field.startswith("model.")]
    ending = (
        f"outside the model: {', '.join(elsewhere)}."
        if elsewhere
        else "none outside the model: data, optimizer and training settings are equal."
    )
    return f"The configs differ in {len(fields)} field{'s' * (len(fields) > 1)} ({', '.join(fields)}); {ending}"


def _size_sentence(summaries: Sequence[Summary]) -> str:
    known = [item.parameters for item in summaries if item.parameters]
    if len(known) < 2:
        return ""
    low, high = min(known), max(known)
    if low == high:
        return f"The models have equally many parameters ({wording.count(low)})."
    sizes = f"{wording.count(low)} to {wording.count(high)}"
    return f"The models have {sizes} parameters: the largest has {wording.percent(high / low - 1)} more than the smallest."


def _outcome_sentences(summaries: Sequence[Summary]) -> list[str]:
    measured = [item for item in summaries if item.outcome != outcome.NO_METRICS]
    sentences = []
    stuck = [
        f"{item.name} (training loss {wording.loss(item.final_train)}, unigram entropy {wording.loss(item.unigram_entropy)})"
        for item in measured
        if item.outcome == outcome.ON_PLATEAU
    ]
    if stuck:
        sentences.append(f"On the unigram plateau, that is, not clearly better than token frequencies alone: {', '.join(stuck)}.")
    diverged = [item.name for item in measured if item.outcome == outcome.DIVERGED]
    if diverged:
        sentences.append(f"Diverged (loss not finite at the end), so not ranked: {', '.join(diverged)}.")
    unknown = [item.name for item in measured if item.outcome == outcome.NOT_KNOWN]
    if unknown:
        sentences.append(f"Whether it left the unigram plateau is not known (too little recorded): {', '.join(unknown)}.")
    if measured and all(item.outcome == outcome.LEFT for item in measured):
        sentences.append("Every run drawn left the unigram plateau." if len(measured) > 1 else "It left the unigram plateau.")
    return sentences


def _problem_sentence(summaries: Sequence[Summary]) -> str:
    bad = [item.name for item in summaries if item.has_problems]
    return f"Files are missing or damaged for {wording.listing(bad)}; see the problems below." if bad else ""
