"""Times the matrix products of one training step by XLA and by PyTorch, in turns.

  python benchmarks/products.py --config=bert:144l1h --config.train.batch_size=4
  --config.model.compute_dtype=float32

Their sum, one after the other, can be compared with the time of a whole step. A step may join
products (query, key and value) or run two at once, which is not measured here. Needs the parity
extra. Prints a Markdown table: the median time of each product, and the sum over the step.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
from collections.abc import Iterator

import jax
import torch

from mhsh.bench.timing import Candidate, Schedule, take_turns
from mhsh.config.schema import Config
from mhsh.configs import take_config

SCHEDULE = Schedule(rounds=9, repetitions=None, seconds=0.05, singly=False)
# Which of a, b is transposed in the forward product, and in those for the gradients of a and of b.
DIRECTIONS = {"y = a b": "nn", "da = dy b'": "nt", "db = a' dy": "tn"}


@dataclasses.dataclass(frozen=True)
class Product:
    """`count` products of a step: [batch, rows, inner] times [batch, inner, columns]."""

    what: str
    transposed: str  # of a and b, which are read as their transposes: nn, nt or tn
    batch: int
    rows: int
    inner: int
    columns: int
    count: int

    @property
    def flops(self) -> int:
        """The FLOPs of one product."""
        return 2 * self.batch * self.rows * self.inner * self.columns


def main() -> None:
    flag, *overrides = sys.argv[1:] or [""]
    config, rest = take_config("config", flag.removeprefix("--config=") or None, overrides)
    if config is None or rest:
        sys.exit(__doc__)
    products = list(products_of(config))
    candidates = [by(product) for product in products for by in (xla_candidate, torch_candidate)]
    times = take_turns(candidates, SCHEDULE)
    print(f"| product | a step | shape | XLA | PyTorch | XLA / PyTorch |\n|---|{'---:|' * 5}")
    sums = {"xla": 0.0, "torch": 0.0}
    for product in products:
        turns = {library: [turn[0] for turn in times[f"{library} {product.what}"].turns] for library in sums}
        ratio = statistics.median(one / other for one, other in zip(turns["xla"], turns["torch"], strict=True))
        seconds = {library: statistics.median(taken) for library, taken in turns.items()}
        sums = {library: total + product.count * seconds[library] for library, total in sums.items()}
        shape = f"{product.batch} x {product.rows} x {product.inner} x {product.columns}"
        cells = " | ".join(f"{1e3 * taken:.2f} ms ({product.flops / taken / 1e9:.0f} GFLOP/s)" for taken in seconds.values())
        print(f"| {product.what} | {product.count} | {shape} | {cells} | {ratio:.2f} |")
    print(f"| all | | | {sums['xla']:.3f} s | {sums['torch']:.3f} s | {sums['xla'] / sums['torch']:.2f} |")


def products_of(config: Config) -> Iterator[Product]:
    """The products of the encoder's layers and of the masked-token output, forward and in both
    gradients.
    """
    model, data = config.model, config.data
    length, batch = data.sequence_length, config.train.batch_size
    tokens, predicted = batch * length, batch * data.max_predictions
    width, heads, layers = model.embed_dim, model.num_heads * model.head_dim, model.num_layers
    forward = (
        ("query, key, value", 1, tokens, width, heads, 3 * layers),
        ("attention output", 1, tokens, heads, width, layers),
        ("scores", batch * model.num_heads, length, model.head_dim, length, layers),
        ("context", batch * model.num_heads, length, length, model.head_dim, layers),
        ("hidden layer", 1, tokens, width, model.mlp_dim, layers),
        ("feed-forward output", 1, tokens, model.mlp_dim, width, layers),
        ("transform", 1, predicted, width, width, 1),
        ("words", 1, predicted, width, model.vocab_size, 1),
    )
    for what, b, m, k, n, count in forward:
        for (formula, transposed), shape in zip(DIRECTIONS.items(), ((m, k, n), (m, n, k), (k, m, n)), strict=True):
            yield Product(f"{what}: {formula}", transposed, b, *shape, count)


def shapes(product: Product) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of both factors in memory."""
    left, right = (product.rows, product.inner), (product.inner, product.columns)
    first, second = (left[::-1] if product.transposed == "tn" else left), (right[::-1] if product.transposed == "nt" else right)
    return ((product.batch, *first), (product.batch, *second)) if product.batch > 1 else (first, second)


def xla_candidate(product: Product) -> Candidate:
    a, b = (jax.random.normal(jax.random.key(seed), shape) for seed, shape in enumerate(shapes(product)))

    @jax.jit
    def multiply(a: jax.Array, b: jax.Array) -> jax.Array:
        return (a.mT if product.transposed == "tn" else a) @ (b.mT if product.transposed == "nt" else b)

    def run(repetitions: int) -> None:
        for _ in range(repetitions):
            multiply(a, b).block_until_ready()

    return Candidate(name=f"xla {product.what}", label="XLA", run=run, work=product.flops, baseline=None)


def torch_candidate(product: Product) -> Candidate:
    a, b = (torch.randn(shape) for shape in shapes(product))
    a, b = (a.mT if product.transposed == "tn" else a), (b.mT if product.transposed == "nt" else b)

    def run(repetitions: int) -> None:
        for _ in range(repetitions):
            torch.matmul(a, b)

    return Candidate(name=f"torch {product.what}", label="PyTorch", run=run, work=product.flops, baseline=None)


if __name__ == "__main__":
    main()
