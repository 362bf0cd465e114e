"""mhsh generate: what a causal run writes after a text."""

from __future__ import annotations

import argparse
import sys

from mhsh.cli.flags import add_checkpoint
from mhsh.cli.parser import examples
from mhsh.run_folder import RunFolder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.epilog = examples(
        "mhsh generate runs/quickstart/24l1h_admin --prompt='The module '",
        "mhsh generate runs/24l1h --temperature=0 < beginning.txt",
    )
    parser.add_argument("folder", metavar="RUN")
    parser.add_argument("--prompt", metavar="TEXT", help="where to begin (default: standard input)")
    parser.add_argument("--max-tokens", type=int, default=50, metavar="N", help="write at most N tokens (default: 50)")
    parser.add_argument("--temperature", type=float, default=0.8, metavar="X", help="0: the likeliest token (default: 0.8)")
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="draw from the K likeliest tokens (default: 0, all)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="equal seeds give equal texts (default: 0)")
    add_checkpoint(parser)


def run(
    folder: str, prompt: str | None, max_tokens: int, temperature: float, top_k: int, seed: int, step: int | None, average: int
) -> int:
    """Prints `prompt` (None: standard input) and what follows it; see `LoadedModel.generate`."""
    from mhsh.inference import check_objective, check_sampling, load

    check_sampling(max_tokens, temperature, top_k, seed)
    check_objective(folder, RunFolder(folder).read_config(), "generate")
    text = sys.stdin.read().removesuffix("\n") if prompt is None else prompt
    model = load(folder, step=step, average=average)
    print(model.generate(text, max_tokens=max_tokens, temperature=temperature, top_k=top_k, seed=seed))
    return 0
