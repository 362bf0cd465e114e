"""What the scripts of report.html draw: the logged curves of every run, with their names."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import stdtrit

from mhsh.report.compare.comparison import Comparison
from mhsh.report.compare.unequal_marks import SIGN, unequal_conditions
from mhsh.report.estimate import CONFIDENCE
from mhsh.report.render.styles import curve_style
from mhsh.report.runs import downsample
from mhsh.text import sanitize
from mhsh.verdict.curves import AXES, SPLITS, Curve
from mhsh.verdict.runs import Run
from mhsh.verdict.words import format_distinct, format_list

AXIS_TITLES = {
    "step": "training steps",
    "tokens": "training tokens",
    "flops": "training FLOPs",
    "seconds": "device seconds of training (compilation excluded)",
}
SPLIT_NAMES = {"train": "training", "validation": "validation"}
RUNS, GROUPS = "runs", "groups"  # the two views
_X_DIGITS, _Y_DIGITS = 7, 6  # that the page holds, more than a screen can show
# Name and unit. Any other metric is called by its key.
_METRICS = {
    "loss": ("loss", "nats per token"),
    "accuracy": ("accuracy", ""),
    "grad_norm": ("gradient norm", ""),
    "learning_rate": ("learning rate", ""),
    "tokens_per_second": ("tokens per second", ""),
    "flops_per_second": ("FLOPs per second", ""),
    "mfu": ("share of the devices' peak FLOPs", ""),
    "skipped": ("skipped steps so far", ""),
}
_AS_LOGGED = ("learning_rate", "skipped")  # metrics that smoothing would only blur

Values = list[int | float | None]  # None stands for a gap


@dataclasses.dataclass(frozen=True)
class Chart:
    """The data of the chart, and what stands beside it."""

    content: Mapping[str, Any]  # as the scripts read it
    metrics: Mapping[str, str]  # names by key, the loss first
    fields: Sequence[str]  # config fields in which runs differ, by which runs can be coloured
    view: str  # shown first
    split: str  # shown first
    smoothing: int  # the strength that is shown first, in windows of SMOOTHING_SHARE
    notes: tuple[str, ...]


def to_json(value: Any) -> str:
    """JSON, safe between script tags whatever the names of runs hold."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def describe_chart(comparison: Comparison) -> Chart:
    """Every number of every run that the chart can show."""
    most = comparison.drawn_points
    keys = dict.fromkeys(key for run in comparison.runs for curve in run.curves.values() for key in curve.metrics)
    metrics = {sanitize(key): metric_name(key) for key in ("loss", *keys)}
    values = {row.name: format_distinct([_value(run, row.name) for run in comparison.runs]) for row in comparison.config_fields}
    fields = {name: each for name, each in values.items() if len(set(each)) > 1}
    longest = max((len(curve) for run in comparison.runs for curve in run.curves.values()), default=0)
    content = {
        "sign": SIGN,
        "axes": {axis: AXIS_TITLES[axis] + comparison.axis_suffix for axis in AXES},
        "splits": SPLIT_NAMES,
        "metrics": {key: {"name": name, "unit": _unit(key), "smooth": key not in _AS_LOGGED} for key, name in metrics.items()},
        "entropies": [{"value": value, "label": label} for value, label in comparison.entropies],
        "fields": fields,
        "groups": [
            {"name": group.name, "runs": group.runs, "unequal": format_list(list(differing)) if differing else ""}
            for group, differing in zip(comparison.groups, unequal_conditions(comparison), strict=True)
        ],
        "runs": [
            {"name": run.name, "curves": {split: _curve(curve, most) for split, curve in run.curves.items() if len(curve)}}
            for run in comparison.runs
        ],
        "styles": [_style(place) for place in range(len(comparison.runs))],
        # By the number of runs: what their standard deviation is multiplied with for an interval.
        "intervals": [_half_interval(count) for count in range(len(comparison.runs) + 1)],
    }
    return Chart(
        content,
        metrics,
        tuple(fields),
        first_view(comparison),
        _first_split(comparison),
        int(downsample.smoothing_rows(longest) > 1),
        (*_thinned_note(comparison, most, longest), *_gap_notes(comparison)),
    )


def first_view(comparison: Comparison) -> str:
    """GROUPS as soon as one group has more than one seed."""
    return GROUPS if any(len(group.runs) > 1 for group in comparison.groups) else RUNS


def _first_split(comparison: Comparison) -> str:
    """Training, unless some run that is drawn has no training rows."""
    drawn = [run for run in comparison.runs if run.drawable]
    return "train" if all(len(run.curves["train"]) for run in drawn) else "validation"


def metric_name(key: str) -> str:
    """What a logged number is called."""
    return _METRICS[key][0] if key in _METRICS else sanitize(key).replace("_", " ")


def _unit(key: str) -> str:
    return _METRICS[key][1] if key in _METRICS else "nats per token" if key.endswith("_loss") else ""


def _value(run: Run, field: str) -> Any:
    section, name = field.split(".", 1)
    return getattr(getattr(run.config, section), name, None)


def _style(place: int) -> dict[str, Any]:
    style = curve_style(place)
    dash = [] if style.dash_array == "none" else list(map(int, style.dash_array.split()))
    return {"color": style.color, "dash": dash, "marker": style.marker_path}


def _half_interval(count: int) -> float | None:
    return None if count < 2 else float(stdtrit(count - 1, 0.5 + CONFIDENCE / 2)) / math.sqrt(count)


def _curve(curve: Curve, most: int) -> dict[str, Any]:
    """The rows to draw, at most about `most`: of the loss and of every metric the lowest and the
    highest of each stretch. Where rows are left out, `even` has smoothed values at even distances,
    which scripts smooth further.
    """
    metrics = {"loss": curve.loss, **{sanitize(key): values for key, values in curve.metrics.items()}}
    if "skipped" in metrics:
        metrics["skipped"] = np.cumsum(np.nan_to_num(metrics["skipped"]))
    rows = np.arange(len(curve))
    window = downsample.smoothing_rows(len(curve))
    if len(curve) <= most:
        return {"window": window, **_columns(curve, metrics, rows)}
    others = [values for key, values in metrics.items() if key != "loss"]
    kept = [downsample.thin(curve.loss, most // 2), *(downsample.thin(values, most // (2 * len(others))) for values in others)]
    spacing = math.ceil(2 * len(curve) / most)
    even = np.unique(np.concatenate([[0], rows[::-1][::spacing]]))  # ends with the last row
    smoothed = {key: values if key in _AS_LOGGED else downsample.smooth(values) for key, values in metrics.items()}
    return {
        "window": window,
        "even": {"spacing": spacing, **_columns(curve, smoothed, even)},
        **_columns(curve, metrics, np.unique(np.concatenate(kept))),
    }


def _columns(curve: Curve, metrics: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, Any]:
    """`x` by axis: values, or the factor where it is proportional to the step; `y` by key."""
    steps = curve.x["step"]
    x: dict[str, Values | float] = {"step": _values(steps[rows], _X_DIGITS)}
    for axis in AXES[1:]:
        places = curve.x[axis]
        factor = float(places[-1] / steps[-1]) if steps[-1] else math.nan
        proportional = math.isfinite(factor) and np.allclose(places, factor * steps, rtol=1e-7, atol=0)
        x[axis] = factor if proportional else _values(places[rows], _X_DIGITS)
    return {"x": x, "y": {key: _values(values[rows], _Y_DIGITS) for key, values in metrics.items()}}


def _values(values: np.ndarray, digits: int) -> Values:
    """Rounded to `digits` significant digits, which makes the page a third smaller. None where not
    finite.
    """
    finite = np.isfinite(values)
    sizes = np.abs(np.where(finite & (values != 0), values, 1.0))
    # Products and quotients with powers of ten that a float holds exactly: the results print with
    # no more digits than asked for.
    places = np.minimum(digits - 1 - np.floor(np.log10(sizes)), 300)
    up, down = 10.0 ** np.maximum(places, 0), 10.0 ** np.maximum(-places, 0)
    with np.errstate(over="ignore"):
        rounded = np.rint(np.where(finite, values, 0.0) * up / down) / up * down
    # The largest floats have nothing above them to be rounded to.
    rounded = np.where(np.isfinite(rounded), rounded, values)
    numbers: list[float] = rounded.tolist()
    return [_plain(value) if known else None for value, known in zip(numbers, finite.tolist(), strict=True)]


def _plain(value: float) -> int | float:
    """5.0 as 5, which is shorter in JSON."""
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def _thinned_note(comparison: Comparison, most: int, longest: int) -> tuple[str, ...]:
    if longest <= most:
        return ()
    return (
        f"Of each longer curve about {most:,} rows are drawn (the longest has {longest:,}); "
        "every stretch keeps its lowest and its highest.",
    )


def _gap_notes(comparison: Comparison) -> list[str]:
    notes = []
    for run in comparison.runs:
        for split in SPLITS:
            curve = run.curves[split]
            gaps = downsample.gap_starts(curve.loss)
            if len(gaps):
                steps = ", ".join(f"{step:,.0f}" for step in curve.x["step"][gaps][:5])
                more = f" and {len(gaps) - 5} more" if len(gaps) > 5 else ""
                since = f"{run.name}: the {SPLIT_NAMES[split]} loss is not finite from step {steps}{more} on"
                notes.append(f"{since}: a gap; among single runs, \u00d7 marks it at the top edge.")
    return notes
