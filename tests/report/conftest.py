"""Comparisons of planted runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mhsh.report.compare.comparison import Comparison, compare

from mhsh.config.schema import Config
from mhsh.verdict.runs import load_runs
from tests.planted import MakeRun, make_run, make_shared_run

__all__ = ["make_run", "make_shared_run"]  # fixtures


@pytest.fixture(scope="module")
def four_runs(make_shared_run: MakeRun) -> Comparison:
    """One good shallow run, a deep one on the plateau, one that diverges, and one whose metrics are
    cut short.
    """
    shallow = make_shared_run("shallow", [4 - 0.06 * i for i in range(30)], [3.4, 2.8, 2.25])
    deep = {"num_layers": 16, "num_heads": 1, "mlp_dim": 32}
    stuck = make_shared_run("stuck", [4, 3.2] + [2.98] * 28, [3.0, 2.99, 2.99], model=deep)
    nan = float("nan")
    diverged = make_shared_run("diverged", [3.5] * 15 + [nan] * 15, [3.4, nan, nan], model={"residual": "rezero"})
    cut = make_shared_run("cut", [4 - 0.05 * i for i in range(30)], [3.5, 2.9, 2.55], model={"residual": "pre_ln"})
    metrics = cut / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-20])
    return compare(load_runs([shallow, stuck, diverged, cut]))


@pytest.fixture
def shapes(make_config: Callable[..., Config]) -> dict[str, Config]:
    """Of a bench file: the shallow config and the deep one."""
    fixed = {"model.heads_per_layer": 0}
    deep = fixed | {"model.num_layers": 16, "model.num_heads": 1, "model.mlp_dim": 32}
    return {"config": make_config("bert", "2l8h", **fixed), "against": make_config("bert", "2l8h", **deep)}


@pytest.fixture(scope="module")
def two_groups(make_shared_run: MakeRun) -> Comparison:
    """Three seeds of a shallow shape, and three of a deep one with another dropout; the deep one
    ends lower in each seed.
    """
    deep = {"num_layers": 16, "num_heads": 1, "mlp_dim": 32, "hidden_dropout": 0.0}
    paths = [
        make_shared_run(
            f"{name} seed {seed}",
            [4 - slope * i + 0.02 * seed for i in range(30)],
            [3.4, 2.8 + 0.01 * seed, 3 - 10 * slope + 0.01 * seed],
            model=model,
            training={"seed": seed},
        )
        for name, slope, model in (("shallow", 0.05, {}), ("deep", 0.06, deep))
        for seed in range(3)
    ]
    return compare(load_runs(paths))


@pytest.fixture(scope="module")
def fifty_runs(make_shared_run: MakeRun) -> Comparison:
    """Fifty rates, with names as a sweep gives them."""
    rates = [round(1e-3 + 1e-5 * place, 5) for place in range(50)]
    return compare(
        load_runs(
            [
                make_shared_run(
                    f"heads_per_layer-8_learning_rate-{rate:.5f}_scheme-admin",
                    [3.0, 2.5, 2.0 + 10 * rate],
                    [2.4 + rate],
                    optimizer={"learning_rate": rate},
                )
                for rate in rates
            ]
        )
    )
