"""FLOPs of the matrix products of a compiled program, against counts made by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from benchmarks.hlo.products import product_flops
from mhsh.planning.hlo import parse_module


def test_matrix_products_in_a_loop_are_counted_in_full():
    def body(x, w):
        return jnp.tanh(x @ w), None

    scan = jax.jit(lambda x, ws: jax.lax.scan(body, x, ws)[0])
    text = scan.lower(jnp.ones((8, 32)), jnp.ones((7, 32, 32))).compile().as_text()
    assert product_flops(parse_module(text)) == 7 * 2 * 8 * 32 * 32


@pytest.mark.parametrize(
    ("line", "flops"),
    [
        # a plain product [16,8] x [8,32]
        ("f32[16,32] convolution(%l, %r), dim_labels=bf_io->bf", 2 * 16 * 8 * 32),
        # contraction over a window axis of 2 and the 8 input features
        ("f32[16,32,1] convolution(%l, %r), window={size=2}, dim_labels=bf0_io0->bf0", 2 * 16 * 8 * 32 * 2),
        # a batch axis of 4 as a dilated window: of 4 x 4 taps, 4 meet the input
        (
            "f32[16,32,4] convolution(%l, %r), window={size=4 stride=3 pad=0_0 lhs_dilate=4}, dim_labels=bf0_io0->bf0",
            2 * 16 * 8 * 32 * 4,
        ),
    ],
    ids=("product", "window", "batch"),
)
def test_products_written_as_convolutions(line, flops):
    size = line.split("size=")[1][0] if "size=" in line else ""
    tail = f",{size}" if size else ""
    text = f"""ENTRY %main (l: f32[16,8{tail}], r: f32[8,32{tail}]) -> f32[] {{
  %l = f32[16,8{tail}] parameter(0)
  %r = f32[8,32{tail}] parameter(1)
  ROOT %c = {line}
}}
"""
    assert product_flops(parse_module(text)) == flops
