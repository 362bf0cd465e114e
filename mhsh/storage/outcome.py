"""The rules for the outcome of a run: it left the unigram plateau, stayed on it, or diverged; and
for what is remarked on before its end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mhsh.config.schema import TASKS, Config, DataConfig
from mhsh.text import format_loss

SMOOTHED_SHARE = 0.1  # of the logged training rows: the last tenth
PLATEAU_MARGIN = 0.1  # nats below the unigram entropy

STEPS_TO_LEAVE = 5000  # after the warm-up
DEEP_POST_LN = 12  # layers, from which on Post-LN may not leave the plateau
SPIKE_ROWS, SPIKE_DEVIATIONS, SPIKE_NATS = 10, 7.0, 0.5

LEFT = "left the unigram plateau"
ON_PLATEAU = "on the unigram plateau"
DIVERGED = "diverged"
NOT_KNOWN = "not known"
NO_METRICS = "no metrics"

PLATEAU_RULE = (
    "A run has left the unigram plateau if and only if its validation loss after the last step (where there is none: its final "
    f"training loss) is below the unigram entropy of its training text minus {PLATEAU_MARGIN} nats: it then predicts better than "
    "token frequencies alone could. A fine-tuning is judged by its final training loss: its validation loss may rise while it "
    "answers better. Without a recorded entropy or a loss it is not known. A run whose final training loss or last validation loss "
    "is not finite, or in which training gave up, has diverged."
)

SPIKE_RULE = (
    f"A logged training loss is a spike if it is more than {SPIKE_NATS:g} nats, and more than {SPIKE_DEVIATIONS:g} standard "
    f"deviations, above the median of the {SPIKE_ROWS} logged losses before it. The deviation is 1.4826 times the median of their "
    "distances from that median."
)


def is_spike(before: Sequence[float], loss: float) -> bool:
    """Whether a training loss is a spike by SPIKE_RULE, `before` being the logged losses before it.
    Losses that are not finite do not count; too few say nothing.
    """
    window = np.asarray([value for value in before if math.isfinite(value)][-SPIKE_ROWS:])
    if len(window) < SPIKE_ROWS or not math.isfinite(loss):
        return False
    median = np.median(window)
    deviation = 1.4826 * np.median(np.abs(window - median))
    return bool(loss - median > max(SPIKE_NATS, SPIKE_DEVIATIONS * deviation))


def smoothed_final_loss(train_loss: Sequence[float] | np.ndarray) -> float | None:
    """The final training loss: the mean over the last SMOOTHED_SHARE of the logged training rows,
    without skipped steps. None: there are no rows; nan: half of these rows or more are not finite.
    """
    if not len(train_loss):
        return None
    rows = math.ceil(len(train_loss) * SMOOTHED_SHARE)
    last = np.asarray(train_loss[-rows:], np.float64)
    finite = last[np.isfinite(last)]
    return float(np.mean(finite)) if 2 * len(finite) > len(last) else math.nan


def judged_loss(objective: str, final_train: float | None, final_validation: float | None) -> float | None:
    """The loss of a run of this model.objective that PLATEAU_RULE judges."""
    return final_train if final_validation is None or objective in TASKS else final_validation


def plateau_outcome(
    objective: str, final_train: float | None, final_validation: float | None, entropy: float | None, gave_up: bool = False
) -> str:
    """LEFT, ON_PLATEAU, DIVERGED, NOT_KNOWN or NO_METRICS, by PLATEAU_RULE; losses in nats."""
    if final_train is None and final_validation is None:
        return NO_METRICS
    if gave_up or any(value is not None and not math.isfinite(value) for value in (final_train, final_validation)):
        return DIVERGED
    final = judged_loss(objective, final_train, final_validation)
    if entropy is None or final is None:
        return NOT_KNOWN
    return LEFT if final < entropy - PLATEAU_MARGIN else ON_PLATEAU


def plateau_deadline(config: Config) -> int:
    """The step from which a run that is on the plateau is said to be stuck: half of its steps, or
    STEPS_TO_LEAVE after the warm-up if they come first, and never within the warm-up.
    """
    warmup = config.optimizer.warmup_steps
    return max(warmup, min(config.train.num_steps // 2, warmup + STEPS_TO_LEAVE))


def baseline_knowledge(config: Config) -> str:
    """The knowledge of a model whose loss is the recorded entropy, in words."""
    if config.model.objective == "classification":
        return "class frequencies" if config.model.num_classes > 1 else "the mean score"
    return "the frequencies of places" if config.model.objective == "span" else "token frequencies"


def outcome_words(outcome: str, config: Config, entropy: float) -> str:
    """The outcome of a run that has ended, in a line. A task has no tokens to predict, and hence no
    unigrams.
    """
    known = baseline_knowledge(config)
    if config.model.objective in TASKS:
        words = {LEFT: f"better than {known} alone", ON_PLATEAU: f"no better than {known} alone"}.get(outcome, outcome)
        return f"{words} (a loss of {format_loss(entropy)})"
    meaning = {LEFT: ": it has trained", ON_PLATEAU: f": it predicts no better than {known}"}.get(outcome, "")
    return f"{outcome} (unigram entropy {format_loss(entropy)}){meaning}"


def plateau_words(config: Config, step: int, split: str, loss: float, entropy: float) -> str:
    """The line that says that a run is still on the plateau, and what to try."""
    at = f"the {split} loss {format_loss(loss)} is not {PLATEAU_MARGIN} below"
    if config.model.objective in TASKS:
        words = f"step {step}: {at} {format_loss(entropy)}, that of {baseline_knowledge(config)} alone"
    else:
        words = f"step {step} is still {ON_PLATEAU}: {at} the unigram entropy {format_loss(entropy)}"
    return f"{words}; to try in another --workdir: {plateau_advice(config, loss, entropy)}"


def plateau_advice(config: Config, loss: float, entropy: float) -> str:
    """Advice for a run that ended, or seems to stay, on the plateau with this loss: flags for
    another run.
    """
    model, optimizer, steps = config.model, config.optimizer, config.train.num_steps
    is_fresh, depth = not config.train.start_from, max(model.num_layers, model.num_decoder_layers)
    more, flags = f"train.num_steps={4 * steps}", []
    if is_fresh and model.residual == "post_ln" and depth >= DEEP_POST_LN:
        flags.append("model.residual=admin")
    if loss < entropy + PLATEAU_MARGIN:  # it has learnt the frequencies, and then nothing
        flags.append(f"optimizer.learning_rate={optimizer.learning_rate / 4:.2g}")
        longer = min(2 * optimizer.warmup_steps or steps // 10, steps * 2 // 3)
        flags += [f"optimizer.warmup_steps={longer}"] if longer > optimizer.warmup_steps else []
        flags.append(more)
    else:
        flags.append(more)
        if is_fresh and isinstance(config.data, DataConfig) and config.data.tokenizer != "bytes":
            flags.append("data.tokenizer=bytes")
    *first, last = [f"--config.{flag}" for flag in flags]
    return f"{', '.join(first)} or {last}" if first else last
