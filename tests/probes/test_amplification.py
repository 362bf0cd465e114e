"""The change of a stack's output: quadratic in the noise, and as theory predicts. Fitted growth:
against laws that are known, and against scipy.
"""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from scipy.stats import linregress, t

from mhsh.errors import UserError
from mhsh.probes.amplification import add_noise, fresh_amplification, growth, mean_interval, plain_deviations, scheme_amplification

SEGMENTS = [[1] * 8, [1, 1, 1, 2, 2, 2, 2, 0], [1, 1, 0, 0, 0, 0, 0, 0]]


@pytest.fixture(scope="module")
def scales(tiny, make_batch):
    """They depend neither on the residual scheme nor on the depth."""
    return plain_deviations(tiny(), make_batch(SEGMENTS))


@pytest.fixture(scope="module")
def changes(scales):
    def changes_of(config, batch, noise):
        return fresh_amplification(config, batch, scales, num_draws=2, noise=noise, seed=0)

    return changes_of


@pytest.mark.slow
def test_it_is_of_the_second_order_in_the_noise(tiny, make_batch, changes):
    config, batch = tiny(residual="admin"), make_batch(SEGMENTS)
    small, large = (changes(config, batch, noise) for noise in (1e-3, 2e-3))
    assert large.shape == (2,) and (small > 0).all()
    np.testing.assert_allclose(large / small, 4, rtol=0.05)


def test_a_fresh_rezero_does_not_move(tiny, make_batch, changes):
    config, batch = tiny(residual="rezero"), make_batch(SEGMENTS)
    np.testing.assert_array_equal(changes(config, batch, 0.1), 0)


def test_closed_form_of_order_one_changes_less_than_post_ln_and_does_not_grow(tiny, make_batch, changes):
    batch = make_batch([[1] * 8] * 4)

    def change(depth, **scheme):
        return changes(tiny(num_layers=depth, **scheme), batch, 1e-3).mean()

    admin = {depth: change(depth, residual="admin", admin_omega="closed_one") for depth in (4, 24)}
    post = {depth: change(depth, residual="post_ln") for depth in (4, 24)}
    assert admin[24] < 1.5 * admin[4] and post[24] > 3 * post[4] and post[24] > 10 * admin[24]


def test_completep_was_tuned_at_the_depth_of_the_config(tiny, make_batch):
    """So that its change falls as 1 / depth, where Pre-LN's grows."""
    config, batch = tiny(num_layers=1, qk_norm=True), make_batch([[1] * 8])
    found = scheme_amplification(config, "completep", (1, 4), batch, num_draws=1, note=lambda _: None)
    first, deep = (point["mean"] for point in found["points"])
    assert 0 < deep < first / 2
    with pytest.raises(UserError, match=r"^model\.loops = 2: .* probe amplification: 1$"):
        scheme_amplification(replace(config, loops=2), "post_ln", (1, 4), batch, num_draws=1, note=lambda _: None)


@pytest.mark.slow
def test_profiled_admin_grows_far_less_with_depth_than_post_ln(make_config, make_batch):
    """arXiv 2004.08249, section 4: O(depth) under Post-LN, O(log depth) with Admin. As the exponent
    g of a fit change ~ depth^g over 6 and 96 layers.
    """
    base, depths = make_config("evidence", "amplification").model, (6, 96)
    batch = make_batch([[1] * 16] * 4, vocab_size=base.vocab_size)
    scales = plain_deviations(base, batch)

    def change(residual, depth):
        config = replace(base, residual=residual, num_layers=depth)
        return fresh_amplification(config, batch, scales, num_draws=2, noise=1e-3, seed=0).mean()

    changes = {residual: [change(residual, depth) for depth in depths] for residual in ("post_ln", "admin")}
    exponents = {residual: np.polyfit(np.log(depths), np.log(pair), 1)[0] for residual, pair in changes.items()}
    assert exponents["post_ln"] > 0.9 and exponents["admin"] < 0.65, (changes, exponents)
    assert changes["post_ln"][1] > 8 * changes["admin"][1]


def test_noise_has_the_deviation_that_was_asked_for_and_stays_where_it_belongs(tiny, random_params):
    config = tiny(residual="admin", num_layers=40)
    params = random_params(config)
    scales = {"attention": {"query_kernel": 0.5, "query_bias": 0.0}, "feed_forward": {"up_kernel": 2.0}}
    changed = add_noise(params, scales, 0.1, np.random.default_rng(0))
    before, after = (tree["encoder"]["layers"] for tree in (params, changed))
    for sublayer, kernel, scale in (("attention", "query_kernel", 0.5), ("feed_forward", "up_kernel", 2.0)):
        delta = np.asarray(after[sublayer][kernel]) - np.asarray(before[sublayer][kernel])
        assert delta.std() == pytest.approx(0.1 * scale, rel=0.05) and abs(delta.mean()) < 0.01 * scale
    for sublayer, kernel in (("attention", "query_bias"), ("attention", "out_kernel"), ("attention_residual", "omega")):
        assert after[sublayer][kernel] is before[sublayer][kernel]
    assert changed["embeddings"] is params["embeddings"]


N = np.array([12, 24, 48, 96, 192, 384, 768])
LAWS = {"O(1)": lambda n: np.full(len(n), 3.0), "O(log n)": lambda n: 0.2 * np.log(n), "O(n)": lambda n: 5.0 * n}


@pytest.mark.parametrize(("law", "exponent"), [("O(1)", 0), ("O(log n)", 0.23), ("O(n)", 1)])
def test_each_law_is_found_and_fits_exactly(law, exponent):
    found = growth(N, LAWS[law](N))
    assert found.law == law and found.deviations[law] == pytest.approx(0, abs=1e-12)
    assert all(deviation > 0.1 for name, deviation in found.deviations.items() if name != law)
    assert found.exponent == pytest.approx(exponent, abs=0.005)
    if law != "O(log n)":
        assert (found.low, found.high) == pytest.approx((exponent, exponent), abs=1e-9)


def test_the_interval_is_that_of_the_slope_and_covers_it():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        y = N**0.7 * np.exp(0.2 * rng.standard_normal(len(N)))
        found = growth(N, y)
        hits += found.low < 0.7 < found.high
    assert 0.92 < hits / 400 < 0.98
    line = linregress(np.log(N), np.log(y))
    assert found.high - found.exponent == pytest.approx(t.ppf(0.975, 5) * line.stderr)


def test_what_cannot_be_fitted():
    assert growth(N, np.zeros(7)) is None
    assert growth(N[:2], N[:2]) is None
    with_gaps = np.where(N == 48, np.nan, 1.0 * N)
    assert growth(N, with_gaps).exponent == pytest.approx(1)


def test_the_interval_of_a_mean():
    assert mean_interval([1.0, 2.0, 6.0]) == pytest.approx((3, 3 - 4.3027 * 1.5275, 3 + 4.3027 * 1.5275), rel=1e-4)
    assert mean_interval([2.0]) == (2.0, -np.inf, np.inf)
