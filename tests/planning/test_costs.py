"""The cost of a run on paper against figures by hand."""

from __future__ import annotations

from mhsh.planning.costs import run_cost


def test_a_run_by_hand(make_config):
    config = make_config("quickstart", "24l1h_admin", **{"train.num_steps": 7, "train.batch_size": 3, "optimizer.warmup_steps": 0})
    cost = run_cost(config)
    assert cost.tokens == 7 * 3 * 128
    d, h, f, layers, length, vocabulary = 128, 32, 128, 24, 128, 264
    # Of one token, a multiply and an add each: q, k, v and out; scores and context; up and down;
    # transform and logits on top.
    layer = 2 * (4 * d * h + 2 * length * h + 2 * d * f)
    assert cost.flops == 3 * cost.tokens * (layers * layer + 2 * (d * d + d * vocabulary))
    attention = 4 * d * h + 3 * h + d
    feed_forward = 2 * d * f + f + d
    omega, norms = 2 * d, 2 * 2 * d
    embeddings = (vocabulary + length) * d + 2 * d
    heads = d * d + d + 2 * d + vocabulary
    assert cost.parameters == layers * (attention + feed_forward + omega + norms) + embeddings + heads
