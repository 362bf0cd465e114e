"""mhsh bench decode of a causal model: tokens a second after a batch of prompts, beside GPT-2 of
transformers.

Both have the same shape and random weights, take the likeliest token, and write as many tokens as
they are asked for. The heads of GPT-2 are D / N wide; other shapes have no peer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mhsh.bench import mhsh_steps
from mhsh.bench.harness import Candidate, Measured, Schedule, bench_results, take_turns
from mhsh.bench.peers import build
from mhsh.bench.results import BenchResults
from mhsh.config.schema import Config
from mhsh.errors import UserError
from mhsh.models.bert import Bert
from mhsh.models.generation import Sampling, generate

PEERS = ("gpt2",)
GPT2 = "transformers GPT2LMHeadModel"

# Prompts [B,T] to the tokens [B,steps] that follow.
Write = Callable[[np.ndarray], np.ndarray]


def generation(
    configs: Mapping[str, Config],
    chosen: Sequence[str],
    *,
    prompts: int,
    prompt_tokens: int,
    steps: int,
    rounds: int,
    note: Callable[[str], None],
) -> BenchResults:
    """Times `steps` tokens after `prompts` prompts of `prompt_tokens` tokens each.

    Raises:
      UserError: too few positions, or a shape that GPT-2 cannot have.
    """
    build.require(chosen)
    for config in configs.values():
        _check(config, chosen, prompt_tokens + steps)
    vocabulary = min(config.model.vocab_size for config in configs.values())
    given = np.random.default_rng(0).integers(0, vocabulary, (prompts, prompt_tokens)).astype(np.int32)
    note("making the models")
    candidates = []
    for name, config in configs.items():
        own = mhsh_steps.identity(name, config, 1)
        candidates.append(
            _candidate(name, mhsh_steps.label(config), mhsh_steps.baseline_of(name), own, _ours(config, steps), given, steps)
        )
        for peer in chosen:
            from mhsh.bench.peers.gpt2 import GPT2 as Model

            facts = {"config": name, "devices": 1, "implementation": GPT2}
            label, write = build.label(config, GPT2, peer), Model(config, steps)
            candidates.append(_candidate(build.peer_name(peer, name), label, name, facts, write, given, steps))
    times = take_turns(candidates, Schedule(rounds, 1, 0.0, each=True), note)
    measured = Measured({"prompts": prompts, "prompt_tokens": prompt_tokens, "tokens": prompts * steps}, candidates, times)
    options = {"rounds": rounds, "prompts": prompts, "prompt_tokens": prompt_tokens, "steps": steps}
    return bench_results("decode", "token", options, configs, [measured], {}, build.torch_environment() if chosen else None)


def _check(config: Config, chosen: Sequence[str], longest: int) -> None:
    model = config.model
    if model.objective != "clm":
        raise UserError(f"mhsh bench decode: model.objective = {model.objective!r} beside 'clm'; give two causal models")
    if longest > model.max_positions:
        raise UserError(f"{longest} tokens are more than model.max_positions = {model.max_positions}; raise it")
    unfit = {
        "model.embed_dim": (model.embed_dim, model.num_heads * model.head_dim, "model.num_heads x model.head_dim"),
        "model.residual": (model.residual, "pre_ln", "what GPT-2 has"),
        "model.qk_norm": (model.qk_norm, False, "what GPT-2 has"),
        "model.positions": (model.positions, "learned", "what GPT-2 has"),
    }
    for field, (here, there, what) in unfit.items() if chosen else ():
        if here != there:
            raise UserError(f"--peer: {field} = {here!r} must be {there!r}, {what}; set it, or leave --peer out")


def _ours(config: Config, steps: int) -> Write:
    model, _, params = mhsh_steps.built(config)
    assert isinstance(model, Bert)
    write = jax.jit(functools.partial(generate, model, room=steps, end=None))
    sampling = Sampling(jnp.float32(0), jax.random.key(0), jnp.ones(config.model.vocab_size, bool))

    def run(prompts: np.ndarray) -> np.ndarray:
        rows = len(prompts)
        batch = {"inputs": prompts, "lengths": np.full(rows, prompts.shape[1], np.int32)}
        batch |= {"limits": np.full(rows, steps, np.int32), "row": np.arange(rows, dtype=np.int32)}
        return np.asarray(write(params, batch, sampling).tokens)

    return run


def _candidate(
    name: str, label: str, baseline: str | None, facts: dict[str, Any], write: Write, prompts: np.ndarray, steps: int
) -> Candidate:
    def run(repetitions: int) -> None:
        for _ in range(repetitions):
            if write(prompts).shape != (len(prompts), steps):
                raise UserError(f"{name} did not write as many tokens as it was asked for; there is nothing to compare")

    return Candidate(name=name, label=label, run=run, work=len(prompts) * steps, baseline=baseline, facts=facts)
