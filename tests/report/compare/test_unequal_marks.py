"""Which groups bear the sign of other conditions than the baseline's."""

from __future__ import annotations

from mhsh.report.compare.comparison import compare
from mhsh.report.compare.unequal_marks import unequal_conditions
from mhsh.verdict.runs import load_runs


def test_sizes_within_the_margin_of_the_baselines_bear_no_sign(make_run) -> None:
    totals = {"a": 100_000, "b": 102_000, "c": 102_001, "d": 97_000}
    paths = [
        make_run(name, [3.0, 2.5], model={"residual": residual}, record={"parameters": {"total": total}})
        for (name, total), residual in zip(totals.items(), ("post_ln", "pre_ln", "deepnorm", "rezero"), strict=True)
    ]
    assert unequal_conditions(compare(load_runs(paths))) == ((), (), ("total parameters",), ("total parameters",))


def test_a_condition_that_matters_is_one_at_any_difference(make_run) -> None:
    paths = [make_run(name, [3.0, 2.5], model={"hidden_dropout": rate}) for name, rate in (("a", 0.1), ("b", 0.1001))]
    assert unequal_conditions(compare(load_runs(paths)))[0] == ()
    assert "dropout" in unequal_conditions(compare(load_runs(paths)))[1]
