"""Tokens a second of beam search: mhsh beside MarianMTModel of transformers, the same shape, random weights, PyTorch on CPU.

Needs the `parity` extra. Run from the repository's root:  python -m benchmarks.decode_against_marian
Everything is decoded in turns, in one process, on the same number of threads, in two settings:

batch: one batch of sentences of one length, all decoded by the same number of steps (the end mark is suppressed).
file: sentences of many lengths (log-normal, 8 to 60 tokens, drawn once), each translated to as many tokens as it has itself. mhsh
makes its own batches, as `mhsh translate` does; Marian gets batches of 32 in the order of the file, which is what a pipeline does,
and once more in the order of length. A batch runs until its last sentence is whole, and only the tokens of whole sentences count.

Prints one JSON object, and a row for a Markdown table for every setting on standard error: the rates are of the median turn, the
ratios the median of those within a turn, and the ratio of the fastest turns. Where cores are shared, wall time says little: then
look at the CPU seconds as well, which hardly hang on the load. OMP_WAIT_POLICY=passive, as torch's threads spin otherwise.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import jax
import numpy as np
import torch
import transformers
from flax import linen as nn

from configs.translation import get_config
from mhsh.config_reading import from_dict
from mhsh.evaluation.translation import Decoder, Sentence, length_limit, model_decoder, sentence_batches, source_batch
from mhsh.models.model import build_model

LAYERS, HEADS, HEAD_DIM, WIDTH, MLP_DIM, VOCAB_SIZE, MAX_POSITIONS = 6, 8, 64, 512, 2048, 32_000, 512
PAD, BEGIN, END = 0, 2, 3
BEAM, LENGTH_PENALTY = 4, 0.6
MARIAN_BATCH = 32
BATCH_TOKENS = 4096  # as `mhsh translate` has it by default

# (sources with their end marks, the target tokens of each) -> the tokens of each
Decode = Callable[[Sequence[np.ndarray], Sequence[int]], list[np.ndarray]]


def main() -> None:
    """Measures, and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=32, help="of the batch")
    parser.add_argument("--source-tokens", type=int, default=25, help="of every sentence of the batch")
    parser.add_argument("--steps", type=int, default=30, help="target tokens of every sentence of the batch")
    parser.add_argument("--file-sentences", type=int, default=256)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    search, model = mhsh_search(), marian_model()
    one_batch: dict[str, Decode] = {"mhsh": partial(mhsh_batch, search), "marian": partial(marian_batch, model)}
    whole_file: dict[str, Decode] = {
        "mhsh": partial(mhsh_file, search),
        "marian_in_file_order": partial(marian_file, model),
        "marian_sorted_by_length": partial(marian_sorted, model),
    }
    generator = np.random.default_rng(0)
    drawn = np.clip(np.rint(generator.lognormal(3.1, 0.5, options.file_sentences)), 8, 60).astype(int).tolist()
    equal = [options.source_tokens] * options.sentences
    settings = {
        "batch": measure(one_batch, random_sources(generator, equal), [options.steps] * options.sentences, options.turns),
        "file": measure(whole_file, random_sources(generator, drawn), drawn, options.turns),
    }
    report = {
        "options": vars(options),
        "beam": BEAM,
        "threads": threads,
        "omp_wait_policy": os.environ["OMP_WAIT_POLICY"],
        "settings": settings,
        "versions": {"jax": jax.__version__, "torch": torch.__version__, "transformers": transformers.__version__},
        "processor": platform.processor() or platform.machine(),
    }
    print(json.dumps(report))
    print("| setting | useful tokens | decoder | tokens/s | mhsh is faster by: median | best turns | CPU |", file=sys.stderr)
    for setting, result in settings.items():
        for name, rate in result["tokens_per_second"].items():
            ratios = [f"{result[kind].get(name, 1):.2f}" for kind in ("median_ratio", "ratio_of_best", "cpu_ratio")]
            print(f"| {setting} | {result['useful_tokens']} | {name} | {rate:.0f} | {' | '.join(ratios)} |", file=sys.stderr)


def measure(decoders: dict[str, Decode], sources: Sequence[np.ndarray], lengths: Sequence[int], turns: int) -> dict[str, Any]:
    """Seconds of every turn and what follows from them; the first turn, which compiles and warms up, is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in decoders}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in decoders}
    for turn in range(turns + 1):
        for name, decode in decoders.items():
            begin, cpu_begin = time.perf_counter(), time.process_time()
            found = decode(sources, lengths)
            taken, cpu_taken = time.perf_counter() - begin, time.process_time() - cpu_begin
            assert [len(tokens) for tokens in found] == list(lengths), name
            assert not np.isin(np.concatenate(found), (PAD, END)).any(), name
            if turn:
                seconds[name].append(taken)
                cpu_seconds[name].append(cpu_taken)
    ours, others = seconds["mhsh"], [name for name in decoders if name != "mhsh"]
    return {
        "useful_tokens": sum(lengths),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "tokens_per_second": {name: sum(lengths) / statistics.median(times) for name, times in seconds.items()},
        "median_ratio": {name: statistics.median(t / o for t, o in zip(seconds[name], ours, strict=True)) for name in others},
        "ratio_of_best": {name: min(seconds[name]) / min(ours) for name in others},
        "cpu_ratio": {name: statistics.median(cpu_seconds[name]) / statistics.median(cpu_seconds["mhsh"]) for name in others},
    }


def random_sources(generator: np.random.Generator, lengths: Sequence[int]) -> list[np.ndarray]:
    """Sentences of so many tokens, the end mark included."""
    return [np.append(generator.integers(END + 1, VOCAB_SIZE, length - 1), END).astype(np.int32) for length in lengths]


def mhsh_search() -> Decoder:
    """Our Transformer-base and its search."""
    base = from_dict(get_config("6l8h").to_dict()).model
    precise = dict(compute_dtype="float32", residual="post_ln", remat_policy="none")
    config = dataclasses.replace(base, vocab_size=VOCAB_SIZE, max_positions=MAX_POSITIONS, **precise)
    assert (config.num_layers, config.num_decoder_layers, config.num_heads, config.head_dim) == (LAYERS, LAYERS, HEADS, HEAD_DIM)
    assert (config.embed_dim, config.mlp_dim) == (WIDTH, MLP_DIM)
    model: Any = build_model(config)
    example = np.ones((1, 8), np.int32)
    keys = ("inputs", "decoder_inputs", "targets")
    batch = {f"{key}{suffix}": example for key in keys for suffix in ("", "_position", "_segmentation")}
    params = nn.unbox(jax.jit(lambda: model.init(jax.random.key(0), batch, deterministic=True))())["params"]

    return model_decoder(model, params, num_hypotheses=BEAM, length_penalty=LENGTH_PENALTY, forbidden=(PAD, BEGIN, END))


def mhsh_batch(search: Decoder, sources: Sequence[np.ndarray], lengths: Sequence[int]) -> list[np.ndarray]:
    """All at once."""
    members = [Sentence(line, tokens) for line, tokens in enumerate(sources)]
    decoded = search(source_batch(members, len(members), max(map(len, sources))), np.array(lengths, np.int32), max(lengths))
    return [tokens[:count] for tokens, count in zip(decoded.tokens, decoded.lengths, strict=True)]


def mhsh_file(search: Decoder, sources: Sequence[np.ndarray], lengths: Sequence[int]) -> list[np.ndarray]:
    """In the batches of `mhsh translate`, with its room for targets."""
    found: list[np.ndarray] = [np.zeros(0, np.int32)] * len(sources)
    for members, rows, length in sentence_batches([Sentence(*each) for each in enumerate(sources)], MAX_POSITIONS, BATCH_TOKENS):
        limits = np.zeros(rows, np.int32)
        limits[: len(members)] = [lengths[sentence.line] for sentence in members]
        decoded = search(source_batch(members, rows, length), limits, length_limit(length, MAX_POSITIONS))
        for sentence, tokens, count in zip(members, decoded.tokens, decoded.lengths, strict=False):
            found[sentence.line] = tokens[:count]
    return found


def marian_model() -> Any:
    """transformers' model of the same shape."""
    config = transformers.MarianConfig(
        vocab_size=VOCAB_SIZE,
        d_model=WIDTH,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=MLP_DIM,
        decoder_ffn_dim=MLP_DIM,
        activation_function="relu",
        max_position_embeddings=MAX_POSITIONS,
        scale_embedding=True,
        pad_token_id=PAD,
        eos_token_id=END,
        decoder_start_token_id=BEGIN,
        forced_eos_token_id=None,
    )
    torch.manual_seed(0)
    return transformers.MarianMTModel(config).eval()


def marian_batch(model: Any, sources: Sequence[np.ndarray], lengths: Sequence[int]) -> list[np.ndarray]:
    """All at once, with transformers' own key/value cache and beam search, by the steps of the longest."""
    tokens = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(s.astype(np.int64)) for s in sources], True, PAD)
    with torch.inference_mode():
        out = model.generate(
            input_ids=tokens,
            attention_mask=(tokens != PAD).long(),
            min_new_tokens=max(lengths),
            max_new_tokens=max(lengths),
            num_beams=BEAM,
            do_sample=False,
            length_penalty=LENGTH_PENALTY,
            early_stopping=False,
        )
    return [row[1 : length + 1] for row, length in zip(out.numpy(), lengths, strict=True)]  # without the begin mark


def marian_file(model: Any, sources: Sequence[np.ndarray], lengths: Sequence[int]) -> list[np.ndarray]:
    """Batches in the order given."""
    starts = range(0, len(sources), MARIAN_BATCH)
    batches = [marian_batch(model, sources[i : i + MARIAN_BATCH], lengths[i : i + MARIAN_BATCH]) for i in starts]
    return [tokens for batch in batches for tokens in batch]


def marian_sorted(model: Any, sources: Sequence[np.ndarray], lengths: Sequence[int]) -> list[np.ndarray]:
    """Batches of sentences of like length."""
    order = sorted(range(len(sources)), key=lambda line: -len(sources[line]))
    found = marian_file(model, [sources[line] for line in order], [lengths[line] for line in order])
    return [tokens for _, tokens in sorted(zip(order, found, strict=True), key=lambda each: each[0])]


if __name__ == "__main__":
    main()
