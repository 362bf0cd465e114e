"""Planted runs judged, for tests of the rules."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mhsh.sweep.axes import cells_of, parse_axes
from mhsh.verdict.estimate import Estimate
from mhsh.verdict.experiment import load_experiment
from mhsh.verdict.findings import Comparison, compare, judge_page
from mhsh.verdict.treatment import treatment_of
from mhsh.verdict.tuning import tune
from tests.conftest import load_fields
from tests.planted import MakeRun
from tests.sweeps import write_sweep

NAN = math.nan
COSTS = ("parameters", "tokens", "flops")  # of a planned cell
STUCK = 2.95  # not 0.1 nats below the entropy of 3.0
SHALLOW = [2.500, 2.511, 2.489, 2.507, 2.494]
DEEPER = {"num_layers": 16, "num_heads": 1, "mlp_dim": 32}
DEEP = [2.551, 2.559, 2.541, 2.555, 2.543]  # about 0.05 higher, seed by seed


def judge(paths: Sequence[str | Path], over: str | None = None, **options: Any) -> Comparison:
    experiment = load_experiment(paths)
    treatment = options.pop("treatment", treatment_of(experiment.axes, None))
    if over is not None:
        experiment = tune(experiment, over)
    return judge_page([compare(experiment, treatment=treatment, **options)])[0][0]


def verdicts(comparison: Comparison) -> list[str | None]:
    return [finding and finding.verdict for finding in comparison.findings]


def difference(comparison: Comparison) -> Estimate:
    """Of the second group."""
    finding = comparison.findings[1]
    assert finding is not None and finding.difference is not None
    return finding.difference


def planted(make_run: MakeRun, shapes: Mapping[str, tuple[Mapping[str, Any], Sequence[float]]], **options: Any) -> list[Path]:
    """Runs of models, which end at these losses, a seed each."""
    return [
        make_run(f"{name} {seed}", [4.0, 3.0], [loss], model=dict(model), training={"seed": seed}, **options)
        for name, (model, losses) in shapes.items()
        for seed, loss in enumerate(losses)
    ]


def swept(path: Path, axes: Sequence[str], loss: Callable[..., float | None], fields: Mapping[str, Any] | None = None) -> Path:
    """A sweep whose cells end at `loss` of their values on the axes; None: that one has not run."""
    fields = fields or load_fields("evidence", "heads")
    names = [cell.name for cell in cells_of(parse_axes(axes, fields), fields, lambda _: dict.fromkeys(COSTS, 0))]
    values = {name: [_value(text) for text in re.findall("-([^_]+)", name)] for name in names}
    ends = {name: end for name, of in values.items() if (end := loss(*of)) is not None}
    return write_sweep(path, fields, axes, ends).path


def _value(text: str) -> int | float | str:
    return int(text) if text.isdigit() else float(text) if text[0].isdigit() else text


def heads(path: Path, shallow: Sequence[float | None], deep: Sequence[float | None]) -> Path:
    """A sweep of two groupings; an end of None has not run."""
    seeds = ",".join(str(seed) for seed in range(max(len(shallow), len(deep))))
    ends = {8: shallow, 1: deep}
    return swept(path, ["heads_per_layer=8,1", f"seed={seeds}"], lambda heads, seed: dict(enumerate(ends[heads])).get(seed))


NOT_IMPROVED = "never improved on the token frequencies (unigram entropy, 3.000)"


def edit_last_row(folder: Path, **fields: Any) -> None:
    rows = (folder / "metrics.jsonl").read_text().splitlines()
    rows[-1] = json.dumps(json.loads(rows[-1]) | fields)
    (folder / "metrics.jsonl").write_text("\n".join(rows) + "\n")
