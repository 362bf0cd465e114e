"""Tokens a second of the training input from prepared rows, beside DataCollatorForLanguageModeling of transformers.

Needs the `parity` extra. Run from the repository's root, on rows that `mhsh prepare` has made of masked-language-model text:
  python -m benchmarks.input_pipeline --config=configs/bert.py:12l12h --config.data.source=arrayrecord:DIR

Everything makes masked batches of train.batch_size of the same rows, in turns, in one process with all cores at its disposal:

mhsh: what `mhsh train` does: rows read from the shards in shuffled order, masked, made ahead of time by a thread.
collator: DataCollatorForLanguageModeling alone. The rows lie in memory, as the lists of ids that a tokenizer gives, with token
types, attention mask and the mask of special tokens, so that a batch holds what ours does; reading and shuffling cost it nothing.
collator_of_ids: the same with the ids alone; it finds the special tokens by itself, and its batches have no token types.
loader: the first collator in torch's DataLoader, shuffled, with a worker process a core.

Prints one JSON object, and rows for a Markdown table on standard error: tokens are places of the rows, padding among them; rates
are those of the median turn. Where cores are shared, wall time says little: then look at the CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import grain
import numpy as np
import torch
import transformers

from mhsh.config import Config, DataConfig
from mhsh.data.load import load_corpus
from mhsh.data.pipeline import prefetched
from mhsh.data.pretraining import PretrainingCorpus
from mhsh.data.rows import full_rows
from mhsh.main import take_config

# Rows that the collator is given over and over: more than lie in any cache, few enough to make lists of.
ROWS_IN_MEMORY = 20_000

Example = dict[str, list[int]]
Batches = Callable[[int], Iterator[Any]]  # so many of them


def main() -> None:
    """Measures, and prints."""
    config, rest = take_config("config", sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=500, help="of a turn")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args(rest)
    if config is None or config.model.objective != "mlm" or not isinstance(config.data, DataConfig):
        sys.exit("give a config of model.objective = 'mlm' with --config=configs/bert.py:VARIANT")
    if config.data.whole_word_masking:
        sys.exit("data.whole_word_masking = True: the collator would need to know where in a text its tokens stood; set it False")
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    corpus = load_corpus(config, None)
    assert isinstance(corpus, PretrainingCorpus)
    makers = contestants(config, config.data, corpus, cores)
    check_masking(makers, corpus)
    seconds, cpu_seconds = measure(makers, options.batches, options.turns)
    tokens = options.batches * config.train.batch_size * config.data.sequence_length
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    cpu_medians = {name: statistics.median(times) for name, times in cpu_seconds.items()}
    report = {
        "options": vars(options),
        "sequence_length": config.data.sequence_length,
        "batch_size": config.train.batch_size,
        "rows": len(corpus.train),
        "cores": cores,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "tokens_per_second": {name: tokens / median for name, median in medians.items()},
        "tokens_per_cpu_second": {name: tokens / median for name, median in cpu_medians.items()},
        "mhsh_is_faster_by": {name: median / medians["mhsh"] for name, median in medians.items()},
        "mhsh_is_faster_by_cpu": {name: median / cpu_medians["mhsh"] for name, median in cpu_medians.items()},
        "versions": {"numpy": np.__version__, "grain": grain.__version__, "torch": torch.__version__}
        | {"transformers": transformers.__version__},
    }
    print(json.dumps(report))
    print("| batches of | tokens/s | tokens/CPU s | mhsh is faster by: wall | CPU |", file=sys.stderr)
    for name in makers:
        rates = [f"{report[kind][name]:,.0f}" for kind in ("tokens_per_second", "tokens_per_cpu_second")]
        ratios = [f"{report[kind][name]:.1f}" for kind in ("mhsh_is_faster_by", "mhsh_is_faster_by_cpu")]
        print(f"| {name} | {' | '.join(rates + ratios)} |", file=sys.stderr)


def contestants(config: Config, data: DataConfig, corpus: PretrainingCorpus, cores: int) -> dict[str, Batches]:
    """What makes batches, by the names above."""
    batch_size = config.train.batch_size
    steps = corpus.train_steps(batch_size)
    examples = rows_as_lists(config, corpus)
    ids_alone = [{"input_ids": example["input_ids"]} for example in examples]
    vocab = {token: number for number, token in enumerate(corpus.tokenizer.vocab)}
    collate = transformers.DataCollatorForLanguageModeling(
        transformers.BertTokenizer(vocab=vocab, do_lower_case=data.lowercase), mlm_probability=data.mask_fraction
    )

    def collated(of: list[Example]) -> Batches:
        starts = range(0, len(of) - batch_size + 1, batch_size)
        return lambda count: (collate(of[(start := starts[k % len(starts)]) : start + batch_size]) for k in range(count))

    def loaded(count: int) -> Iterator[Any]:
        sampler = torch.utils.data.RandomSampler(examples, num_samples=count * batch_size)
        loader: Any = torch.utils.data.DataLoader(examples, batch_size, sampler=sampler, num_workers=cores, collate_fn=collate)
        return iter(loader)

    return {
        "mhsh": lambda count: prefetched(steps, 0, count),
        "collator": collated(examples),
        "collator_of_ids": collated(ids_alone),
        "loader": loaded,
    }


def rows_as_lists(config: Config, corpus: PretrainingCorpus) -> list[Example]:
    """The first rows as what tokenizers of transformers give, padded already, as ours are."""
    numbers = np.arange(min(len(corpus.train), ROWS_IN_MEMORY))
    rows = full_rows(corpus.train.take(numbers), config.model)
    columns = {
        "input_ids": rows["inputs"],
        "token_type_ids": rows.get("token_types", np.zeros_like(rows["inputs"])),
        "attention_mask": rows["inputs_segmentation"],
        "special_tokens_mask": corpus.tokenizer.is_special[rows["inputs"]].astype(np.int32),
    }
    lists = {name: values.tolist() for name, values in columns.items()}
    return [{name: values[row] for name, values in lists.items()} for row in range(len(numbers))]


def check_masking(makers: dict[str, Batches], corpus: PretrainingCorpus) -> None:
    """Stops where somebody does not do the work: all mask about as many tokens of their batches."""
    shares = {}
    for name, batches in makers.items():
        masked = real = 0
        for batch in batches(20):
            inputs = batch["inputs"] if name == "mhsh" else batch["input_ids"].numpy()
            masked += int((inputs == corpus.tokenizer.mask_id).sum())
            real += int((inputs != corpus.tokenizer.pad_id).sum())
        shares[name] = masked / real
    if max(shares.values()) > 1.5 * min(shares.values()):
        sys.exit(f"the shares of masked tokens differ: {shares}; there is nothing to compare")


def measure(makers: dict[str, Batches], count: int, turns: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Wall and CPU seconds of every turn, those of worker processes among the latter."""
    seconds: dict[str, list[float]] = {name: [] for name in makers}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(turns):
        for name, batches in makers.items():
            begin, cpu_begin = time.perf_counter(), cpu_time()
            made = sum(1 for _ in batches(count))
            seconds[name].append(time.perf_counter() - begin)
            cpu_seconds[name].append(cpu_time() - cpu_begin)
            assert made == count, name
    return seconds, cpu_seconds


def cpu_time() -> float:
    """Of this process, and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    main()
