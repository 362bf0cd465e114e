"""The findings of a comparison in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from mhsh.storage import outcome
from mhsh.text import format_interval, format_list, format_loss, format_names, format_signed
from mhsh.verdict.estimate import TOO_FEW, Estimate, wilson
from mhsh.verdict.experiment import DIVERGED, STUCK, Choice, Group, Member
from mhsh.verdict.fairness import Fairness, other_unit
from mhsh.verdict.findings import (
    HIGHER,
    LEVEL,
    LOWER,
    OTHER_UNIT,
    TOO_FEW_SEEDS,
    UNMEASURED,
    UNTRAINED,
    Change,
    Comparison,
    Finding,
)


def title(comparison: Comparison) -> str:
    """The answer in one sentence, without its full stop."""
    groups = comparison.experiment.groups
    if not groups:
        return "No run has logged anything yet"
    base, findings = groups[comparison.baseline], [finding for finding in comparison.findings if finding is not None]
    nowhere = {group.name: choice.over for group, choice in _choices(groups) if choice.optimum is None and choice.is_final}
    if nowhere:
        field = next(iter(nowhere.values())).split(".")[1]
        return f"No verdict: at no {field} did all choosing runs of {format_names([*nowhere])} train"
    if not findings:
        own = comparison.estimates[0]
        measured = f"{comparison.measured.measure.name} {_of(own)}" if own else "no run has trained yet"
        return f"{base.name}: {measured}; there is no other group to compare it with{_missing(groups)}"
    if any(finding.verdict == OTHER_UNIT for finding in findings):
        return f"No verdict: {other_unit(comparison.experiment.runs)}, so the losses are not in one unit"
    if len(findings) == 1:
        return _single_title(comparison, findings[0], base) + _missing(groups)
    return _title_of_many(comparison, findings, base) + _missing(groups)


def _single_title(comparison: Comparison, finding: Finding, base: Group) -> str:
    group, apart, name = finding.group, finding.difference, comparison.measured.measure.name
    own, theirs = (comparison.estimates[comparison.experiment.groups.index(each)] for each in (group, base))
    if finding.verdict == UNTRAINED:
        return f"{_trained_words(group)} and {_trained_words(base)}{_fisher_words(finding)}: their losses are not compared"
    if apart is None or own is None or theirs is None:
        waiting = [each.name for each, known in ((group, own), (base, theirs)) if known is None]
        return f"No verdict yet: no run of {format_list(waiting)} has ended with a {name}"
    values = f"{name} {format_loss(own.mean)} against {format_loss(theirs.mean)}"
    unfair = "" if _fair(comparison, finding) else f"; but {_doubt(comparison, finding)}"
    if finding.verdict in (LOWER, HIGHER):
        ends = f"{group.name} ends {format_loss(abs(apart.mean))} {finding.verdict} than {base.name}"
        return f"{ends}: {values} ({_interval(apart)}){unfair}"
    if finding.verdict == TOO_FEW_SEEDS:
        return (
            f"{group.name} ends {format_loss(abs(apart.mean))} {LOWER if apart.mean < 0 else HIGHER} than {base.name} ({values}), "
            f"but {_seeds(apart)} cannot tell that from chance{unfair}"
        )
    return f"{group.name} and {base.name} do not differ significantly: {values} ({_interval(apart)}){unfair}"


def _title_of_many(comparison: Comparison, findings: Sequence[Finding], base: Group) -> str:
    parts = []

    def tell(names: Sequence[str], one: str, several: str) -> None:
        parts.extend([f"{format_names(names)} {one if len(names) == 1 else several}"] if names else [])

    for verdict in (LOWER, HIGHER):
        apart = {each.group.name: each.difference for each in findings if each.verdict == verdict}
        words = [f"{name} ({format_signed(each.mean)})" for name, each in apart.items() if each is not None]
        tell(words, f"ends {verdict}", f"end {verdict}")
    for verdict, one, several in (
        (LEVEL, "does not differ significantly", "do not differ significantly"),
        (TOO_FEW_SEEDS, "has too few seeds for a verdict", "have too few seeds for a verdict"),
        (UNMEASURED, "has no value yet", "have no value yet"),
    ):
        tell([finding.group.name for finding in findings if finding.verdict == verdict], one, several)
    stuck = [group for group in (base, *(finding.group for finding in findings)) if group.untrained]
    parts += [format_names([_trained_words(group) for group in stuck])] if stuck else []
    unfair = [finding for finding in findings if finding.difference is not None and not _fair(comparison, finding)]
    doubts = _together((each.group.name, _doubt(comparison, each)) for each in unfair)
    doubt = "".join(f"; but {each}" for each in doubts)
    return f"Against {base.name}, by {comparison.measured.measure.name}: {'; '.join(parts)}{doubt}"


def sentences(comparison: Comparison) -> Iterable[str]:
    """What stands under the title."""
    groups = comparison.experiment.groups
    if not groups:
        return
    choices = _choices(groups)
    for group, choice in choices:
        yield from _choice_words(choice, group)
    if len({choice.trials for _, choice in choices}) > 1:
        counts = [f"{choice.trials} for {group.name}" for group, choice in choices]
        yield f"Not an equal tuning budget: trials that have ended: {format_list(counts)}."
    findings = [finding for finding in comparison.findings if finding is not None]
    begun = [finding for finding in findings if finding.group.runs]
    yield from _together((each.group.name, fairness_words(each.fairness, _better(comparison, each))) for each in begun)
    clocks = [(finding.group.name, format_list(finding.fairness.clock)) for finding in findings if finding.fairness.clock]
    yield from _together((name, f"device seconds are not comparable: different {clock}.") for name, clock in clocks)
    for finding in findings:
        yield from _pairing(comparison, finding)
    unknown = [each.group.name for each in findings if comparison.sampling_error(groups.index(each.group)) == math.inf]
    if unknown:
        others = "what other validation rows may change is not known: not all runs have as many parts of the last validation loss"
        yield f"{format_names(unknown)} and {groups[comparison.baseline].name}: {others}."
    if any(finding.verdict == TOO_FEW_SEEDS for finding in findings):
        yield TOO_FEW
    yield from _overlaps(groups)
    for group in groups:
        stuck = [member for member in group.members if member.state == STUCK]
        diverged = [member for member in group.members if member.state == DIVERGED]
        for members, what in ((stuck, _stuck_words(group)), (diverged, "diverged")):
            if members:
                yield f"{group.name}: {_seed_words(members)} {what}."
        yield from _to_try(group, stuck)


def _stuck_words(group: Group) -> str:
    known = outcome.uninformed(group.config)
    return "stayed on the unigram plateau" if known == "token frequencies" else f"ended no better than {known} alone"


def _to_try(group: Group, stuck: Sequence[Member]) -> Iterable[str]:
    """What the training of the first stuck run said that one might try."""
    run = next((member.run for member in stuck if member.run is not None), None)
    entropy = None if run is None else run.recorded_number("data", "unigram_entropy")
    if run is None or entropy is None:
        return
    loss = run.final_train if run.final_validation is None else run.final_validation
    if loss is not None:
        yield f"To try for {group.name}, in another folder: {outcome.what_to_try(run.config, loss, entropy)}."


def change_words(change: Change) -> str:
    """`1 head a layer (24x1 admin): from small to large the difference goes from ... to ...`"""
    apart = change.estimate
    interval = f" ({format_interval(apart.low, apart.high)})" if apart.has_interval else ""
    names = " and ".join(dict.fromkeys(change.groups))
    before, after = map(format_signed, change.means)
    move = f"the difference goes from {before} to {after}, by {format_signed(apart.mean)}{interval}"
    chance = "" if apart.is_significant else ", which may be chance"
    unfair = f"; but not comparable: different {format_list(change.unequal)}" if change.unequal else ""
    return f"{change.relation} ({names}): from {change.first} to {change.other} {move}{chance}{unfair}."


def fairness_words(fairness: Fairness, better: bool | None = None) -> str:
    """Whether the losses are comparable. `better`: whether the group ends better than the baseline;
    None if that is not known.
    """
    larger, share = ("it", fairness.excess) if fairness.excess > 0 else ("the baseline", -fairness.excess / (1 + fairness.excess))
    size = f"{larger} has {100 * share:.1f} % more parameters"
    reasons = [size] * fairness.may_be_size(better) + [f"different {format_list(fairness.unequal)}"] * bool(fairness.unequal)
    if reasons:
        return f"Not comparable: {'; '.join(reasons)}."
    note = f"; {size} and ends worse all the same" if fairness.excess else ""
    if len(fairness.factors) > 1:
        return f"Confounded: {format_list(fairness.factors)} differ at once{note}."
    what = "nothing that matters differs"
    if fairness.factors:
        what = f"of what matters only the treatment differs ({fairness.factors[0]})"
    return f"Comparable: {what}{note}."


def _overlaps(groups: Sequence[Group]) -> Iterable[str]:
    """Which validation examples are also training examples."""
    said = {}
    for group in groups:
        for run in group.runs:
            count, of = (run.recorded_number("data", "overlap", key) for key in ("count", "of"))
            if count and of:
                said[group.name] = f"{count:,.0f} of {of:,.0f} validation examples are also training examples."
    yield from _together(said.items())


def _pairing(comparison: Comparison, finding: Finding) -> Iterable[str]:
    """Which seeds are in the difference, if not all are."""
    if finding.difference is None:
        return
    base = comparison.experiment.groups[comparison.baseline]
    ours, theirs = ({member.replicate: member for member in group.trained} for group in (finding.group, base))
    only = [(finding.group.name, [ours[each] for each in ours if each not in theirs])]
    only.append((base.name, [theirs[each] for each in theirs if each not in ours]))
    if finding.difference.paired:
        left = [f"{_seed_words(members)} of {name}" for name, members in only if members]
        if left:
            pairs = f"{finding.group.name} is paired with {base.name} on the {finding.difference.seeds} seeds in common"
            yield f"{pairs}; without {format_list(left)}."
    elif finding.difference.seeds > 1:
        yield f"{finding.group.name} and {base.name} have no two seeds in common, so they are not paired."


def _choices(groups: Sequence[Group]) -> list[tuple[Group, Choice]]:
    return [(group, group.choice) for group in groups if group.choice]


def _choice_words(choice: Choice, group: Group) -> Iterable[str]:
    field = choice.over.split(".")[1]
    if choice.optimum is None:
        return
    low, high = min(choice.measured), max(choice.measured)
    by = "" if choice.measure == "validation loss" else f" {choice.measure} of"
    yield f"{group.name} is at its best {field}, {choice.optimum.rate:g} of {low:g} to {high:g}, by{by} {choice.trials} trials."
    if choice.optimum.at_edge:
        yield f"{group.name}: its best {field} is at the edge of those tried; one beyond it may be better by any amount."
    if not choice.is_final:
        left = f"{len(choice.choosing) - choice.trials} of {len(choice.choosing)} choosing runs have not ended"
        yield f"{group.name}: {left}; its {field} may change. If fewer seeds chose, say so with --choosing-seeds."


def _seed_words(members: Iterable[Member]) -> str:
    """`seeds 0, 1 and 4`; with data seeds where these differ from the training seeds."""
    pairs = [member.replicate for member in members]
    if all(one == other for one, other in pairs) or len({other for _, other in pairs}) == 1:
        return f"{'seed' if len(pairs) == 1 else 'seeds'} {format_list([str(one) for one, _ in pairs])}"
    return format_list([f"seed {one} with data seed {other}" for one, other in pairs])


def _missing(groups: Sequence[Group]) -> str:
    """What was planned and is not in the comparison."""
    words = []
    for group in groups:
        states: dict[str, int] = {}
        for member in group.missing:
            what = "not named" if not member.named else member.state
            states[what] = states.get(what, 0) + 1
        if states:
            counts = format_list([f"{count} {what}" for what, count in states.items()])
            words.append(f"{counts} of {len(group.members)} runs of {group.name}")
    return f". Missing: {format_names(words)}" if words else ""


def _trained_words(group: Group) -> str:
    total = len(group.trained) + len(group.untrained)
    if not total:
        return f"no run of {group.name} has ended"
    low, high = wilson(len(group.trained), total)
    return f"{len(group.trained)} of {total} runs of {group.name} trained ({100 * low:.0f} to {100 * high:.0f} %)"


def _fisher_words(finding: Finding) -> str:
    return f", Fisher's exact p = {finding.trained:.2g}" if finding.trained is not None else ""


def _fair(comparison: Comparison, finding: Finding) -> bool:
    return finding.fairness.comparable and not finding.fairness.may_be_size(_better(comparison, finding))


def _doubt(comparison: Comparison, finding: Finding) -> str:
    sentence = fairness_words(finding.fairness, _better(comparison, finding)).rstrip(".")
    return sentence[0].lower() + sentence[1:]


def _better(comparison: Comparison, finding: Finding) -> bool | None:
    """Whether the group ends better than the baseline; None if that is not known."""
    if finding.difference is None:
        return None
    return (finding.difference.mean < 0) == comparison.measured.measure.lower_is_better


def _together(said: Iterable[tuple[str, str]]) -> Iterable[str]:
    """Each sentence once, after the names of all groups of which it is said."""
    names: dict[str, list[str]] = {}
    for name, sentence in said:
        names.setdefault(sentence, []).append(name)
    yield from (f"{format_names(each)}: {sentence}" for sentence, each in names.items())


def _of(own: Estimate) -> str:
    interval = f" (95 % interval {own.low:.3f} to {own.high:.3f}, {own.seeds} seeds)" if own.has_interval else ""
    return f"{format_loss(own.mean)}{interval}"


def _interval(apart: Estimate) -> str:
    if not apart.has_interval:
        return f"{_seeds(apart)}, no spread" if apart.seeds > 1 else "one seed, no interval"
    return f"95 % interval of the difference {format_interval(apart.low, apart.high)}, {_seeds(apart)}"


def _seeds(apart: Estimate) -> str:
    return f"{apart.seeds} seed{'s' * (apart.seeds != 1)}{', paired' if apart.paired else ''}"
