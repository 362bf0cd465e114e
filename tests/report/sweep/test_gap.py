"""Tests of `mhsh gap`: the gap between shapes against tokens and size, and what it says of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from mhsh.cli.reports import gap
from mhsh.errors import UserError
from mhsh.run_folder import RunFolder
from tests.conftest import load_fields
from tests.report.sweeps import TRAINED_ALIKE, VALIDATED_ALIKE, write_sweep

AXES = ["heads_per_layer=8,1", "scheme=admin", "seed=0,1,2"]  # what has one value is not repeated
# By heads a layer and seed: the losses after steps 1 to 4.
FALLING = {
    8: [(4.0, 3.0, 2.5, 2.0), (4.0, 3.1, 2.6, 2.2), (4.0, 2.9, 2.4, 1.9)],
    1: [(4.0, 3.8, 3.0, 2.41), (4.0, 3.9, 3.1, 2.60), (4.0, 3.7, 2.9, 2.29)],
}


def write(
    path: Path,
    losses: Mapping[int, Sequence[Sequence[float]]],
    axes: Sequence[str] = AXES,
    parameters: Mapping[int, int] | None = None,
    text: str = "one",
    **model: Any,
) -> Path:
    """A sweep whose runs were evaluated after every one of their steps. `parameters`: by heads a
    layer.
    """
    fields = load_fields("evidence", "heads")
    fields["model"] |= model
    ends = {
        f"heads_per_layer-{heads}_scheme-admin_seed-{seed}": row[-1]
        for heads, rows in losses.items()
        for seed, row in enumerate(rows)
    }
    folder = write_sweep(path, fields, axes, {})
    for cell in folder.read_plan().cells:
        if cell.name not in ends:
            continue
        row = losses[cell.config.model.num_heads][cell.config.train.seed]
        run = RunFolder.open_for_training(folder.run_folder(cell.name).path, cell.config)
        total = (parameters or {}).get(cell.config.model.num_heads, 1000)
        run.write_run({"status": "finished", "parameters": {"total": total}, "data": {"fingerprint": text}, **TRAINED_ALIKE})
        for step, loss in enumerate(row, 1):
            numbers = {"step": step, "tokens": 10 * step, "flops": 100 * step, "seconds": 0.5 * step, "loss": loss}
            run.append_metrics([numbers | {"split": "train"}, numbers | {"split": "validation"} | VALIDATED_ALIKE])
    return path


def found(folders: Sequence[Path], out: Path, **flags: Any) -> dict[str, Any]:
    assert gap.run([str(folder) for folder in folders], flags.get("over"), flags.get("choosing_seeds"), str(out)) == 0
    return json.loads(out.read_text())


def test_the_gap_is_paired_by_seed_at_every_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    document = found([write(tmp_path / "base", FALLING)], tmp_path / "gap.json")
    ((sweep,),) = (document["sweeps"],)
    assert (sweep["heads"], sweep["embed_dim"], sweep["baseline"]) == (24, 128, "heads_per_layer = 8")
    (deep,) = sweep["gaps"]
    apart = np.array(FALLING[1]) - np.array(FALLING[8])  # [seed, step]
    assert [point["tokens"] for point in deep["points"]] == [10, 20, 30, 40]
    for point, values in zip(deep["points"], apart.T, strict=True):
        assert point["gap"]["mean"] == pytest.approx(values.mean())
    low, high = stats.t.interval(0.95, 2, apart[:, -1].mean(), stats.sem(apart[:, -1]))
    assert deep["points"][-1]["gap"]["low"] == pytest.approx(low) and deep["points"][-1]["gap"]["high"] == pytest.approx(high)
    assert deep["points"][-1]["gap"]["p_value"] == pytest.approx(
        stats.ttest_rel(*(np.array(FALLING[n])[:, -1] for n in (1, 8))).pvalue
    )
    change = apart[:, -1] - apart[:, 1]  # since half of the steps
    assert deep["changed_from"] == 2 and deep["change"]["mean"] == pytest.approx(change.mean())
    assert deep["change"]["p_value"] == pytest.approx(stats.ttest_1samp(change, 0).pvalue)
    # It falls from 0.8 to 0.4 in one doubling, so that the next one would close it.
    _, said = document["findings"]
    assert said.endswith("at this pace it would after 1.0 more doublings of the steps.")
    assert "+0.400 (+0.375 to +0.425), higher; since step 2 -0.400 (-0.425 to -0.375), in its favour" in said
    assert said in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("deep", "ending"),
    [
        ([(4.0, 3.1, 2.6, 2.30), (4.0, 3.2, 2.7, 2.51), (4.0, 3.0, 2.5, 2.22)], "it does not overtake in this range."),
        ([(4.0, 3.1, 2.6, 1.90), (4.0, 3.2, 2.7, 2.11), (4.0, 3.0, 2.5, 1.82)], "it has overtaken."),
        ([(4.0, 3.1, 2.6, 2.30), (4.0, 3.2, 2.7, 1.90), (4.0, 3.0, 2.5, 2.00)], "no significant difference."),
        # Ahead at half of the steps as well, by 0.2, and 0.1 at the end.
        ([(4.0, 2.8, 2.3, 1.90), (4.0, 2.91, 2.4, 2.11), (4.0, 2.7, 2.2, 1.82)], "+0.107 (+0.078 to +0.135), against it."),
    ],
    ids=["grows", "overtaken", "unclear", "less far ahead"],
)
def test_what_is_said_of_it(tmp_path: Path, deep: list[tuple[float, ...]], ending: str):
    _, said = found([write(tmp_path / "s", {8: FALLING[8], 1: deep})], tmp_path / "gap.json")["findings"]
    assert said.endswith(ending)


def test_several_sizes_are_paired_by_seed(tmp_path: Path):
    more = {8: FALLING[8], 1: [(*row[:-1], row[-1] + 0.1 + 0.01 * seed) for seed, row in enumerate(FALLING[1])]}
    sweeps = [write(tmp_path / "small", FALLING), write(tmp_path / "large", more, num_layers=6)]
    document = found(sweeps, tmp_path / "out" / "gap.json")
    assert [sweep["heads"] for sweep in document["sweeps"]] == [24, 48]
    (change,) = document["sweep_changes"]
    assert (change["first"], change["other"]) == ("small", "large")
    assert change["change"]["mean"] == pytest.approx(0.11)
    low, high = stats.t.interval(0.95, 2, 0.11, stats.sem([0.1, 0.11, 0.12]))
    assert (change["change"]["low"], change["change"]["high"]) == (pytest.approx(low), pytest.approx(high))
    assert document["findings"][-1].startswith(
        "heads_per_layer = 1: from small (24 heads, D = 128; 24L1H against 3L8H) to large (48 heads, D = 128; 48L1H against 6L8H)"
    )
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"gap.json", "gap.md", "gap.png", "gap.svg"}
    page = (tmp_path / "out" / "gap.md").read_text()
    assert "](gap.png)" in page and page.count("\n| small |") == page.count("\n| large |") == 1


def test_what_else_differs_is_said_first(tmp_path: Path):
    """Within a sweep by the ledger's rule; between sweeps all but their sizes should be equal."""
    one = write(tmp_path / "one", FALLING, parameters={8: 1000, 1: 1030})
    large = write(tmp_path / "large", FALLING, parameters={8: 4000, 1: 4000}, num_layers=6)
    other = write(tmp_path / "other", FALLING, text="another", num_layers=6)
    unequal, equal, between, *gaps = found([one, large], tmp_path / "a" / "gap.json")["findings"]
    assert unequal == "one: Not comparable: different sizes (total parameters: up to 3.0 % more, and 2.0 % is allowed)."
    assert equal.startswith("large: Comparable as far as recorded") and len(gaps) == 3
    assert between == (
        "Between the sweeps: nothing that matters differs but size and the treatment (shape, model.residual and "
        "model.admin_omega), as far as recorded: not every run recorded data order (batches at equal steps) and "
        "weight-decayed parameters."
    )
    said = found([one, other], tmp_path / "b" / "gap.json")["findings"]
    assert "Between the sweeps: not comparable: different data fingerprint." in said
    assert not any(line.startswith("Between") for line in found([one], tmp_path / "c" / "gap.json")["findings"])


def test_one_layer_is_compared_with_one_layer_however_many_heads_it_has(tmp_path: Path):
    """All heads in one layer: 24 in one size, 48 in the next, which has 24 heads in two layers."""
    last = {8: 2.0, 16: 2.0, 24: 1.9, 48: 1.5}
    sweeps = []
    for name, heads in (("base", (8, 24)), ("more", (16, 24, 48))):
        fields = load_fields("evidence", "heads")
        fields["model"]["num_heads"] = heads[0]
        ends = {f"heads_per_layer-{n}_scheme-admin_seed-{seed}": last[n] + seed for n in heads for seed in (0, 1)}
        axes = [f"heads_per_layer={','.join(map(str, heads))}", "scheme=admin", "seed=0,1"]
        sweeps.append(write_sweep(tmp_path / name, fields, axes, ends).path)
    document = found(sweeps, tmp_path / "gap.json")
    assert [[gap["counterpart"] for gap in sweep["gaps"]] for sweep in document["sweeps"]] == [["1 layer"], ["2 layers", "1 layer"]]
    (change,) = document["sweep_changes"]
    assert change["counterpart"] == "1 layer" and change["change"]["mean"] == pytest.approx(-0.5 + 0.1)
    assert document["findings"][-1].startswith("1 layer: from base (24 heads, D = 128; 1L24H against 3L8H) to more (48 heads")


def test_sweeps_of_one_size_stand_beside_each_other_by_name(tmp_path: Path):
    sweeps = [write(tmp_path / "admin", FALLING), write(tmp_path / "pre-ln", FALLING, residual="pre_ln")]
    document = found(sweeps, tmp_path / "gap.json")
    assert document["sweep_changes"][0]["change"]["mean"] == 0
    picture = (tmp_path / "gap.svg").read_text()
    assert "<!-- heads in all -->" not in picture and "<!-- pre-ln -->" in picture  # text is drawn as paths


def test_a_seed_that_did_not_finish_in_both_is_left_out(tmp_path: Path):
    document = found(
        [write(tmp_path / "s", {8: FALLING[8], 1: [*FALLING[1][:2], (4.0, 3.0, 2.0, math.nan)]})], tmp_path / "gap.json"
    )
    ((deep,),) = (document["sweeps"][0]["gaps"],)
    assert [each["seed"] for each in deep["by_seed"]] == [[0], [1]] and deep["points"][-1]["gap"]["seeds"] == 2


def test_each_shape_at_its_own_rate(tmp_path: Path):
    """The choosing seed takes the rate 0.003 for the deep shape; its gap is that of the others."""
    ends = {
        f"heads_per_layer-{heads}_learning_rate-{rate}_seed-{seed}": loss
        for (heads, rate), row in {
            (8, 0.001): (2.0, 2.1, 2.2),
            (8, 0.003): (2.5, 1.0, 1.0),
            (1, 0.001): (2.6, 1.0, 1.0),
            (1, 0.003): (2.4, 2.6, 2.8),
        }.items()
        for seed, loss in enumerate(row)
    }
    folder = write_sweep(
        tmp_path / "s", load_fields("evidence", "heads"), ["heads_per_layer=8,1", "lr=1e-3,3e-3", "seed=0,1,2"], ends
    )
    (deep,) = found([folder.path], tmp_path / "gap.json", over="lr", choosing_seeds=1)["sweeps"][0]["gaps"]
    assert [each["gap"] for each in deep["by_seed"]] == [pytest.approx(0.5), pytest.approx(0.6)]


def test_what_is_wrong_is_said_in_a_line(tmp_path: Path):
    one = write(tmp_path / "a" / "s", FALLING)
    same = write(tmp_path / "b" / "s", FALLING)
    empty = write(tmp_path / "empty", {8: FALLING[8]})
    for folders, flags, out, said in [
        ([one, same], {}, "gap.json", "two of the folders are called s"),
        ([empty], {}, "gap.json", "empty: no setting has a seed that finished in common"),
        ([one], {"choosing_seeds": 1}, "gap.json", "--choosing-seeds goes with --over"),
        ([one], {"over": "depth"}, "gap.json", "--over=depth is no axis"),
        ([one], {}, "gap.txt", "name it .json"),
    ]:
        with pytest.raises(UserError, match=said):
            found(folders, tmp_path / out, **flags)
    (tmp_path / "gap.json").write_text("mine")
    with pytest.raises(UserError, match="was not written by mhsh gap"):
        found([one], tmp_path / "gap.json")
