"""The findings of a comparison in words."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from mhsh.storage import outcome
from mhsh.text import format_difference, format_interval, format_list, format_loss, format_names, format_range, format_signed
from mhsh.verdict.decision import EQUIVALENT, UNDECIDED, Decision, PooledDifference
from mhsh.verdict.estimate import CONFIDENCE, MIN_SEEDS, TOO_FEW, Estimate
from mhsh.verdict.fairness import Fairness, unit_mismatch
from mhsh.verdict.findings import LEVEL, OTHER_UNIT, TOO_FEW_SEEDS, UNTRAINED, Change, Comparison, Finding
from mhsh.verdict.groups import DIVERGED, STUCK, Choice, Group, Member
from mhsh.verdict.outcomes import Measure

MOST_WORDS = 25  # of a title
_NOT_ENOUGH = " not enough to rule out chance"
_FAIR = "A fair comparison:"


def title(comparison: Comparison, prefix: str = "") -> str:
    """The answer in one sentence of at most MOST_WORDS words, without its full stop: which group
    ends best, by how much, and how sure that is. It begins with the prefix.
    """
    groups = comparison.experiment.groups
    if not groups:
        return "No run has logged anything yet"
    findings = [finding for finding in comparison.findings if finding is not None]
    if unchosen := _unchosen_words(groups):
        return f"{prefix}No verdict: {unchosen[0]}"
    if any(finding.verdict == OTHER_UNIT for finding in findings):
        return f"{prefix}No verdict: {unit_mismatch(comparison.experiment.runs)}, so the losses are not in one unit"
    trained = {
        place: mean for place, mean in enumerate(comparison.estimates) if mean is not None and not groups[place].untrained_members
    }
    if not trained:
        if any(group.trained_members for group in groups):
            return f"{prefix}No run has a {comparison.measure.name} after its last step"
        if any(group.untrained_members for group in groups):
            return f"{prefix}No run has trained yet"
        choosing = [name for _, choice in _choices(groups) for name in choice.choosing]
        if ended := sum(choice.trials for _, choice in _choices(groups)):
            return f"{prefix}No run that is compared has finished yet; {ended} of {len(choosing)} choosing runs have"
        return f"{prefix}No run has finished yet"
    best = (min if comparison.measure.lower_is_better else max)(trained, key=lambda place: trained[place].mean)
    rivals = [place for place in trained if place != best and comparison.baseline in (best, place)]
    rivals = [place for place in rivals if _finding_between(comparison, best, place).difference is not None]
    if not rivals:
        answer = f"{groups[best].name} ends at a {comparison.measure.name} of {_mean_words(trained[best])}"
        others = [group for place, group in enumerate(groups) if place not in trained]
        return _short_answer(prefix, [f"{answer}; {_unmeasured_words(others, comparison.measure)}", answer] if others else [answer])
    nearest = min(rivals, key=lambda place: abs(trained[place].mean - trained[best].mean))
    return _short_answer(prefix, _answers(comparison, best, nearest))


def _unchosen_words(groups: Sequence[Group]) -> list[str]:
    """Why no value of the tuned field is chosen for groups that have all the same ended."""
    names: dict[str, list[str]] = {}
    for group, choice in _choices(groups):
        if choice.optimum is None and (choice.is_final or group.trained_members):
            field, is_known = choice.over.split(".")[1], choice.is_final and choice.measured
            words = f"at no {field} did all choosing runs of {{}} train" if is_known else f"no {field} of {{}} is chosen"
            names.setdefault(words, []).append(group.name)
    return [words.replace("{}", format_names(each)) for words, each in names.items()]


def _unmeasured_words(others: Sequence[Group], measure: Measure) -> str:
    """Why the groups without a mean have none, for a sentence on the one group that has one."""
    names, has = format_names([group.name for group in others]), "has" if len(others) == 1 else "have"
    if not any(group.untrained_members for group in others):
        return f"{names} {has} no {measure.name if any(group.trained_members for group in others) else 'finished run yet'}"
    return f"not all runs of {names} trained" if any(group.trained_members for group in others) else f"no run of {names} trained"


def _answers(comparison: Comparison, best: int, other: int) -> list[str]:
    """The answer on two groups, of which one is the baseline, in fewer and fewer words."""
    finding = _finding_between(comparison, best, other)
    difference = finding.difference
    assert difference is not None
    if best == comparison.baseline:
        difference = dataclasses.replace(difference, mean=-difference.mean, low=-difference.high, high=-difference.low)
    ours, theirs = (comparison.experiment.groups[place].name for place in (best, other))
    start = {TOO_FEW_SEEDS: "No verdict", LEVEL: "No clear winner"}.get(finding.verdict, "")
    if finding.decision is not None and finding.decision.words == EQUIVALENT and finding.verdict != TOO_FEW_SEEDS:
        start = f"Equivalent within {finding.decision.margin:g}"
    start = "No fair comparison" if comparison.is_unfair(finding) else start
    size = difference_words(difference)(abs(difference.mean)).removeprefix("+")
    ends = f"ends {size} {'below' if difference.mean < 0 else 'above'}"
    parts = [part for part in ours.split(", ") if part not in theirs.split(", ")[1:]]
    short = ours if len(parts) == len(ours.split(", ")) else ", ".join(parts)
    rival = "the baseline" if other == comparison.baseline else "the next"
    names = ((ours, theirs), (ours, rival), (short, rival), (" ".join([*short.split()[:4], "\u2026"]), rival))
    interval = _interval_words(difference)
    return [
        f"{f'{start}: ' * bool(start)}{one} {ends} {two} ({words})"
        for one, two in names
        for words in (
            interval,
            interval.removeprefix("95 % interval ").split(_NOT_ENOUGH)[0].removesuffix(" is").removesuffix(" are"),
        )
    ]


def _short_answer(prefix: str, answers: Sequence[str]) -> str:
    """The first answer that has at most MOST_WORDS words, else the last."""
    return next(
        (text for text in (f"{prefix}{each}" for each in answers) if len(text.split()) <= MOST_WORDS), f"{prefix}{answers[-1]}"
    )


def _finding_between(comparison: Comparison, place: int, other: int) -> Finding:
    """The finding on two groups, of which one is the baseline."""
    finding = comparison.findings[other if place == comparison.baseline else place]
    assert finding is not None
    return finding


def sentences(comparison: Comparison) -> Iterable[str]:
    """The sentences below the title: first those on what a reader must beware of."""
    groups = comparison.experiment.groups
    if not groups:
        return
    findings = [finding for finding in comparison.findings if finding is not None]
    with_runs = [finding for finding in findings if finding.group.runs]
    statements = [(each.group.name, fairness_words(each.fairness, comparison.is_better(each))) for each in with_runs]
    fair = [entry for entry in statements if entry[1].startswith(_FAIR)]
    yield from _join_groups((name, words) for name, words in statements if not words.startswith(_FAIR))
    for finding in findings:
        if finding.verdict == UNTRAINED:
            shares = [_trained_words(each) for each in (finding.group, groups[comparison.baseline])]
            fisher = f", Fisher's exact p = {finding.fisher_p_value:.2g}" if finding.fisher_p_value is not None else ""
            ranks = (
                f", rank test with those that did not as the worst p = {finding.rank_p_value:.2g}"
                if finding.rank_p_value is not None
                else ""
            )
            yield f"{' and '.join(shares)}{fisher}{ranks}: their losses are not compared."
    yield from _join_groups(fair)
    yield from _missing_sentences(comparison)
    choices = _choices(groups)
    for group, choice in choices:
        yield from _choice_words(choice, group)
    if len({choice.trials for _, choice in choices}) > 1:
        counts = [f"{choice.trials} for {group.name}" for group, choice in choices]
        yield f"The tuning budgets differ: {format_list(counts)} finished trials."
    clocks = [(finding.group.name, format_list(finding.fairness.clock)) for finding in findings if finding.fairness.clock]
    yield from _join_groups((name, f"device seconds are not comparable: different {clock}.") for name, clock in clocks)
    for finding in findings:
        yield from _pairing_sentences(comparison, finding)
    unknown = [each.group.name for each in findings if math.isinf(comparison.doubt(groups.index(each.group)).error)]
    if unknown:
        others = (
            "not all runs recorded as many parts of the last validation loss, so what other validation rows may change is not known"
        )
        yield f"{format_names(unknown)} and {groups[comparison.baseline].name}: {others}."
    if any(finding.verdict == TOO_FEW_SEEDS for finding in findings):
        yield TOO_FEW
    yield from _overlap_sentences(groups)
    for group in groups:
        yield from _untrained_sentences(group)


def cautions(comparison: Comparison, place: int) -> list[str]:
    """Why to be careful with what a group's row says, in a few words each."""
    group, finding = comparison.experiment.groups[place], comparison.findings[place]
    found = [f"{len(group.untrained_members)} of {len(group.members)} runs did not train"] * bool(group.untrained_members)
    if finding is not None and finding.fairness.unequal:
        found.append(f"not comparable: different {format_list(finding.fairness.unequal)}")
    if finding is not None and finding.difference is not None:
        if finding.fairness.may_be_size(comparison.is_better(finding)):
            found.append(f"not comparable: {_size_words(finding.fairness)}")
        if len(finding.fairness.factors) > 1:
            found.append(f"several things differ: {format_list(finding.fairness.factors)}")
    stability = comparison.stabilities[place]
    if stability is not None and stability.first_spike is not None:
        run, step, loss = stability.first_spike
        found.append(f"{stability.spikes:.2g} loss spikes per 1,000 steps, to {format_loss(loss)} at step {step:,.0f} of {run}")
    if group.choice and group.choice.optimum and group.choice.optimum.at_edge:
        found.append(f"its best {group.choice.over.split('.')[1]} is at the edge of those tried")
    if group.choice and not group.choice.is_final:
        found.append("choosing runs have not ended")
    return found


def difference_words(difference: Estimate | None) -> Callable[[float], str]:
    """The format of a difference and its interval, where what is significant is not 0.000."""
    return format_difference if difference is not None and difference.is_significant else format_signed


def unbounded_reason(comparison: Comparison, place: int) -> str:
    """Why the interval of a group's difference lacks a bound; empty where it lacks none."""
    finding = comparison.findings[place]
    difference = finding.difference if finding is not None else None
    if difference is None or not difference.has_interval or math.isfinite(difference.high - difference.low):
        return ""
    if math.isinf(comparison.doubt(place).error):
        return "parts of the validation loss are missing"
    missing = [end for end, bound in (("lower", difference.low), ("upper", difference.high)) if not math.isfinite(bound)]
    return f"the values tried give {'none' if len(missing) == 2 else f'no {missing[0]} bound'}"


def _untrained_sentences(group: Group) -> Iterable[str]:
    """Which runs did not train, and what the training of the first stuck one said that one might
    try.
    """
    stuck, diverged = ([member for member in group.members if member.state == state] for state in (STUCK, DIVERGED))
    run = next((member.run for member in stuck if member.run is not None), None)
    if run is not None:
        known, entropy = outcome.baseline_knowledge(group.config), run.recorded_number("data", "unigram_entropy")
        loss = outcome.judged_loss(run.config.model.objective, run.final_train, run.final_validation)
        assert entropy is not None and loss is not None  # what tells that it is stuck
        words = f"ended no better than {known} alone"
        if known == "token frequencies":
            words = f"never improved on the token frequencies (unigram entropy, {entropy:.3f})"
        yield f"{group.name}: {_seed_words(stuck)} {words}."
        yield f"To try for {group.name}, in another folder: {outcome.plateau_advice(run.config, loss, entropy)}."
    if diverged:
        yield f"{group.name}: {_seed_words(diverged)} diverged."


def change_words(change: Change) -> str:
    """`1 head a layer (24x1 admin): large instead of small changes the difference from ...`"""
    difference = change.estimate
    interval = f" ({format_interval(difference.low, difference.high)})" if difference.has_bound else ""
    names = " and ".join(dict.fromkeys(change.groups))
    before, after = map(format_signed, change.means)
    move = f"changes the difference from {before} to {after}, by {format_signed(difference.mean)}{interval}"
    chance = "" if difference.is_significant else ", which may be chance"
    if difference.has_interval and not interval:
        chance = ". The values tried do not bound this change"
    unfair = f". The two are not comparable: different {format_list(change.unequal)}" if change.unequal else ""
    return f"{change.relation} ({names}): {change.other} instead of {change.first} {move}{chance}{unfair}."


def pooled_words(pooled: PooledDifference) -> str:
    """The sentence on a difference that is pooled over several sweeps."""
    difference, where = pooled.estimate, f"over {len(pooled.sections)} sweeps ({format_names(pooled.sections)})"
    left_out = f", without {format_names(pooled.left_out)}, whose difference has no bound," if pooled.left_out else ""
    mean = f"{format_signed(difference.mean)} ({format_interval(difference.low, difference.high)})"
    when = "as planned" if pooled.planned else "post hoc"
    same = f"{pooled.same_sign} of {pooled.pairs} pairs of seeds have its sign"
    unfair = f" Not comparable in {format_names(pooled.unfair)}." if pooled.unfair else ""
    return f"{pooled.relation}: {where}{left_out} the difference is {mean}, random effects, {when}; {same}.{unfair}"


def deciding_words(decision: Decision) -> str:
    """The seeds or values that would decide whether a difference is within the margin; empty where
    it is decided.
    """
    if decision.words != UNDECIDED:
        return ""
    if decision.seeds is not None:
        return f"{decision.seeds} more seed{'s' * (decision.seeds > 1)} would decide"
    return f"try {format_list([f'{value:g}' for value in decision.values])}" if decision.values else ""


def fairness_words(fairness: Fairness, better: bool | None = None) -> str:
    """Whether the losses are comparable. `better`: whether the group ends better than the baseline;
    None if that is not known.
    """
    size = _size_words(fairness)
    reasons = [size] * fairness.may_be_size(better) + [f"different {format_list(fairness.unequal)}"] * bool(fairness.unequal)
    if reasons:
        return f"Not comparable: {'; '.join(reasons)}."
    note = f" ({size} and ends worse all the same)" if fairness.excess else ""
    count, names = len(fairness.factors), format_list([f"the {factor}" for factor in fairness.factors])
    if count > 1:
        number = {2: "Two", 3: "Three"}.get(count, str(count))
        return (
            f"{number} things differ, {names}, so a difference cannot be attributed to {'either' if count == 2 else 'one'}{note}."
        )
    return f"{_FAIR} {f'only {names} differs' if count else 'nothing that matters differs'}{note}."


def _size_words(fairness: Fairness) -> str:
    larger, share = ("it", fairness.excess) if fairness.excess > 0 else ("the baseline", -fairness.excess / (1 + fairness.excess))
    return f"{larger} has {100 * share:.1f} % more parameters"


def _overlap_sentences(groups: Sequence[Group]) -> Iterable[str]:
    """Which validation examples are also training examples."""
    statements = {}
    for group in groups:
        for run in group.runs:
            count, total = (run.recorded_number("data", "overlap", key) for key in ("count", "of"))
            if count and total:
                statements[group.name] = f"{count:,.0f} of {total:,.0f} validation examples are also training examples."
    yield from _join_groups(statements.items())


def _pairing_sentences(comparison: Comparison, finding: Finding) -> Iterable[str]:
    """Which seeds are in the difference, if not all are."""
    if finding.difference is None:
        return
    base = comparison.experiment.groups[comparison.baseline]
    places = comparison.experiment.groups.index(finding.group), comparison.baseline
    ours, theirs = (
        {member.replicate: member for member in group.trained_members if member.replicate in comparison.values[place].finite_values}
        for place, group in zip(places, (finding.group, base), strict=True)
    )
    only = [(finding.group.name, [ours[each] for each in ours if each not in theirs])]
    only.append((base.name, [theirs[each] for each in theirs if each not in ours]))
    if finding.difference.paired:
        unpaired = [f"{_seed_words(members)} of {name}" for name, members in only if members]
        if unpaired:
            pairs = f"{finding.group.name} is paired with {base.name} on the {finding.difference.seeds} seeds in common"
            yield f"{pairs}; without {format_list(unpaired)}."
    elif finding.difference.seeds > 1:
        yield f"{finding.group.name} and {base.name} have no two seeds in common, so they are not paired."


def _choices(groups: Sequence[Group]) -> list[tuple[Group, Choice]]:
    return [(group, group.choice) for group in groups if group.choice]


def _choice_words(choice: Choice, group: Group) -> Iterable[str]:
    field = choice.over.split(".")[1]
    if choice.optimum is None:
        return
    low, high = min(choice.measured), max(choice.measured)
    by = "" if choice.measure == "validation loss" else f" by {choice.measure}"
    yield f"The best {field} of {group.name} is {choice.optimum.rate:g}, of {low:g} to {high:g}{by} ({choice.trials} trials)."
    if choice.optimum.at_edge:
        yield f"{group.name}: its best {field} is at the edge of those tried; one beyond it may be better by any amount."
    if not choice.is_final:
        unfinished = f"{len(choice.choosing) - choice.trials} of {len(choice.choosing)} choosing runs have not ended"
        yield f"{group.name}: {unfinished}; its {field} may change. If fewer seeds chose, say so with --choosing-seeds."


def _seed_words(members: Iterable[Member]) -> str:
    """`seeds 0, 1 and 4`; with data seeds where these differ from the training seeds."""
    pairs = [member.replicate for member in members]
    if all(one == other for one, other in pairs) or len({other for _, other in pairs}) == 1:
        return f"{'seed' if len(pairs) == 1 else 'seeds'} {format_list([str(one) for one, _ in pairs])}"
    return format_list([f"seed {one} with data seed {other}" for one, other in pairs])


def _missing_sentences(comparison: Comparison) -> Iterable[str]:
    """Which planned runs are not in the comparison."""
    groups = comparison.experiment.groups
    unfinished = [group.name for group in groups if len(group.missing_members) == len(group.members)]
    if unfinished:
        yield f"{format_names(unfinished)} {'has' if len(unfinished) == 1 else 'have'} no finished run yet."
    words = []
    for group, values in zip(groups, comparison.values, strict=True):
        states = Counter(member.state if member.is_named else "not named" for member in group.missing_members)
        if unmeasured := len(values.final) - len(values.finite_values):
            states[f"without {comparison.measure.name}"] = unmeasured
        if states and group.name not in unfinished:
            counts = format_list([f"{count} {what}" for what, count in states.items()])
            words.append(f"{counts} of {len(group.members)} runs of {group.name}")
    if words:
        yield f"Missing: {format_names(words)}."


def _trained_words(group: Group) -> str:
    total = len(group.trained_members) + len(group.untrained_members)
    if not total:
        return f"no run of {group.name} has ended"
    from scipy import stats  # which takes a second

    share = stats.binomtest(len(group.trained_members), total).proportion_ci(CONFIDENCE, "wilson")
    return (
        f"{len(group.trained_members)} of {total} runs of {group.name} trained ({100 * share.low:.0f} to {100 * share.high:.0f} %)"
    )


def _join_groups(statements: Iterable[tuple[str, str]]) -> Iterable[str]:
    """Each sentence once, after the names of all groups of which it is said."""
    names: dict[str, list[str]] = {}
    for name, sentence in statements:
        names.setdefault(sentence, []).append(name)
    yield from (f"{format_names(each)}: {sentence}" for sentence, each in names.items())


def _mean_words(mean: Estimate) -> str:
    interval = f" (95 % interval {format_range(mean.low, mean.high, format_loss)}, {mean.seeds} seeds)" if mean.has_interval else ""
    return f"{format_loss(mean.mean)}{interval}"


def _interval_words(difference: Estimate) -> str:
    seeds = f"{difference.seeds} seed{'s' * (difference.seeds != 1)}"
    if difference.seeds < MIN_SEEDS:
        return f"{'one seed is' if difference.seeds == 1 else f'{difference.seeds} seeds are'}{_NOT_ENOUGH}"
    if not difference.has_interval:
        return f"{seeds}, no spread"
    if not difference.has_bound:
        return f"{seeds}; its interval has no bound"
    return f"95 % interval {format_interval(difference.low, difference.high)}, {seeds}"
