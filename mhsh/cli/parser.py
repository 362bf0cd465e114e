"""The commands with their flags: what may be given, and the words that say so."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from mhsh import __version__
from mhsh.cli import configs


def build_parser() -> argparse.ArgumentParser:
    """All commands with their flags."""
    parser = argparse.ArgumentParser(prog="mhsh", description="Train shallow multi-head Transformers against their deep twins.")
    parser.add_argument("--version", action="version", version=f"mhsh {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for add_command in _COMMANDS:
        add_command(commands)
    return parser


def _train(commands: Any) -> None:
    command = _command(commands, "train", "train a config into a run folder, or go on with the run that is there", ["config"])
    # Without one, that of the run folder is taken.
    command.set_defaults(needs_config=False)
    command.add_argument("--workdir", required=True, metavar="DIR", help="the run folder")
    cluster = command.add_argument_group("several processes (one command on each)")
    cluster.add_argument("--distributed", action="store_true", help="join the processes that JAX finds: TPU VMs, GKE, Slurm")
    cluster.add_argument("--coordinator", metavar="HOST:PORT", help="where process 0 listens; with the next two")
    cluster.add_argument("--num-processes", type=int, metavar="N")
    cluster.add_argument("--process-id", type=int, metavar="I")


def _eval(commands: Any) -> None:
    command = _command(commands, "eval", "score a run's checkpoint on its validation rows", [])
    command.add_argument("folder", metavar="RUN")
    command.add_argument("--step", type=int, help="which checkpoint (default: the newest)")


def _describe(commands: Any) -> None:
    command = _command(commands, "describe", "shapes, parameters, FLOPs and memory of one or two configs", ["config", "against"])
    command.add_argument("--json", dest="as_json", action="store_true", help="as JSON")


def _configs(commands: Any) -> None:
    command = _command(commands, "configs", "list config files, variants and fields, or print one config", [])
    configs.add_arguments(command)


def _admin(commands: Any) -> None:
    command = _command(commands, "admin", "run Admin's profiling pass and print omega of every sublayer", ["config"])
    command.add_argument("--json", dest="as_json", action="store_true", help="as JSON")


def _aot(commands: Any) -> None:
    command = _command(commands, "aot", "memory, collectives and FLOPs of the step on a TPU slice that is not here", ["config"])
    command.add_argument(
        "--topology", required=True, metavar="KIND:LAYOUT", help="v5e:4x4, v4:2x2x1, v5p:2x2x2, v6e:4x4 or local:8"
    )
    command.add_argument("--num-slices", type=int, default=1, metavar="N", help="slices of that layout (default: 1)")
    command.add_argument("--hbm", type=float, metavar="GIB", help="memory of a device (default: the public figure)")
    command.add_argument("--search", action="store_true", help="find the largest train.batch_size that fits")
    command.add_argument("--json", dest="as_json", action="store_true", help="as JSON")


def _scaling(commands: Any) -> None:
    command = _command(commands, "scaling", "the step time on many devices, predicted on paper from `mhsh aot`", ["config"])
    command.add_argument(
        "--report", dest="reports", action="append", required=True, metavar="FILE", help="what mhsh aot --json printed; several"
    )
    command.add_argument("--chip", required=True, metavar="KIND", help="v4, v5e, v5p, v6e or h200")
    command.add_argument("--devices", default="8,16,32,64,128,256,512,1024", metavar="N,...", help="how many (default: 8 to 1,024)")
    rows = command.add_mutually_exclusive_group()
    rows.add_argument("--rows-per-device", type=int, metavar="R", help="a fixed batch a device (default: that of the first report)")
    rows.add_argument("--batch", type=int, metavar="B", help="a fixed global batch instead")
    command.add_argument(
        "--efficiency", type=float, default=0.75, metavar="X", help="of peak that matrix products reach (default: 0.75)"
    )
    command.add_argument(
        "--stream-passes", type=float, default=2.0, metavar="P", help="moves of the residual stream a sublayer (default: 2, fused)"
    )
    command.add_argument("--json", dest="as_json", action="store_true", help="as JSON")


def _prepare(commands: Any) -> None:
    command = _command(commands, "prepare", "make a config's sentence pairs or documents into packed rows on disk", ["config"])
    command.add_argument("--out", required=True, metavar="DIR", help="where the rows go")
    command.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (default: one a core)")
    command.add_argument("--runner", default="local", metavar="NAME", help="local (default) or beam")
    command.add_argument("--beam-options", default="", metavar="OPTIONS", help="Beam's pipeline options, in one string")
    command.add_argument(
        "--per-shard", type=int, metavar="N", help="sentence pairs (default: 20000) or documents (default: 1000) in a shard"
    )


def _finetune(commands: Any) -> None:
    command = _command(commands, "finetune", "train a pre-trained run's model on a task, with several seeds", ["config"])
    # The config is whole with the run's fields only.
    command.set_defaults(config_flags=[], partial_flags={"config": "fields"})
    command.add_argument("folder", metavar="RUN", help="the pre-trained run")
    command.add_argument("--workdir", required=True, metavar="DIR", help="where a run folder a seed goes")
    command.add_argument("--seeds", default="0", metavar="K,...", help="of heads, dropout (default: 0)")
    command.add_argument("--fresh", action="store_true", help="take RUN's shape and vocabulary, not its parameters")


def _predict(commands: Any) -> None:
    command = _command(commands, "predict", "answer a task's examples with a fine-tuned run, in the task's own form", [])
    command.add_argument("folder", metavar="RUN")
    command.add_argument("--input", dest="source", required=True, metavar="FILE", help="GLUE's TSV or SQuAD's JSON, plain or .gz")
    command.add_argument("--output", required=True, metavar="FILE", help="a new file: GLUE's TSV, or JSON of answers by id")
    command.add_argument("--step", type=int, help="which checkpoint (default: the newest)")
    command.add_argument(
        "--null-threshold", type=float, default=0.0, metavar="X", help="SQuAD 2.0: how much better no answer must be (default: 0)"
    )
    command.add_argument("--details", metavar="FILE", help="SQuAD: a new file for the n-best answers and what X is held against")


def _translate(commands: Any) -> None:
    command = _command(commands, "translate", "translate lines with a run's checkpoint, one line in, one line out", [])
    command.add_argument("folder", metavar="RUN")
    command.add_argument("--input", dest="source", metavar="FILE", help="UTF-8, plain or .gz (default: standard input)")
    command.add_argument("--output", metavar="FILE", help="a new file (default: standard output)")
    command.add_argument("--beam", type=int, default=4, metavar="K", help="hypotheses a sentence (default: 4)")
    command.add_argument("--length-penalty", type=float, default=0.6, metavar="A", help="score / length ** A (default: 0.6)")
    command.add_argument("--step", type=int, help="which checkpoint (default: the newest)")
    command.add_argument(
        "--average", dest="num_averaged", type=int, default=1, metavar="N", help="average the last N checkpoints (default: 1)"
    )
    command.add_argument("--batch-tokens", type=int, default=4096, metavar="N", help="source tokens at once (default: 4096)")
    command.add_argument("--overlong", default="error", metavar="WHAT", help="lines that are too long: error (default) or cut")


def _score(commands: Any) -> None:
    score = _command(commands, "score", "score predictions of any system against references", [])
    tasks = score.add_subparsers(dest="task", metavar="TASK", required=True)
    command = _command(tasks, "translation", "BLEU and chrF of lines, by sacreBLEU", [])
    command.add_argument("--hypotheses", required=True, metavar="FILE", help="a translation a line, plain or .gz")
    command.add_argument("--references", required=True, metavar="FILE", help="the references, line by line")
    command.add_argument("--lowercase", action="store_true", help="compare without case")
    command.add_argument("--json", dest="as_json", action="store_true", help="as JSON")
    _score_glue(tasks)
    _score_squad(tasks)


def _score_glue(tasks: Any) -> None:
    command = _command(tasks, "glue", "the metrics of one GLUE task, as JSON", [])
    names = "cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli"
    command.add_argument("--task", dest="glue_task", required=True, metavar="T", help=names)
    command.add_argument("--labels", required=True, metavar="FILE", help="the task's original TSV with labels, plain or .gz")
    command.add_argument("--predictions", required=True, metavar="FILE", help="index<TAB>prediction, as one hands them in to GLUE")


def _score_squad(tasks: Any) -> None:
    command = _command(tasks, "squad", "exact match and F1 of SQuAD 1.1 or 2.0, as JSON", [])
    command.add_argument("--data", required=True, metavar="FILE", help="SQuAD's JSON with answers, plain or .gz")
    command.add_argument("--predictions", required=True, metavar="FILE", help="JSON: the answer of each question's id")
    command.add_argument("--na-probabilities", metavar="FILE", help="JSON: each id's no-answer probability (2.0 only)")


def _import(commands: Any) -> None:
    command = _command(commands, "import", "make a run folder of a Hugging Face BERT checkpoint", ["config"])
    command.epilog = f"{command.epilog}\n--task=configs/glue.py:cola (or squad.py) over it, for a checkpoint that was fine-tuned"
    command.add_argument("source", metavar="SRC", help="a folder with config.json and safetensors, or the .safetensors file in it")
    command.add_argument("--out", required=True, metavar="RUN", help="the run folder, new")
    command.add_argument(
        "--fresh-heads",
        action="store_true",
        help="take the body alone (embeddings, encoder, pooler); put the config's heads on it, fresh",
    )
    command.set_defaults(module="import_checkpoint", partial_flags={"task": "task_fields"})  # `import` is no module's name


def _export(commands: Any) -> None:
    command = _command(commands, "export", "write a run's checkpoint as a BERT that transformers loads", [])
    command.add_argument("folder", metavar="RUN")
    command.add_argument("--out", required=True, metavar="DIR", help="where it goes, new")
    command.add_argument("--step", type=int, help="which checkpoint (default: the newest)")
    command.set_defaults(module="export_checkpoint")


def _bench(commands: Any) -> None:
    help_text = "time mhsh beside other configs, its peers and the device's limits, in turns"
    kinds = _command(commands, "bench", help_text, []).add_subparsers(dest="kind", metavar="KIND", required=True)
    train = _bench_kind(kinds, "train", "one optimiser step", ["config", "against"], rounds=7)
    inference = _bench_kind(kinds, "inference", "the forward pass, over a grid of shapes", ["config", "against"], rounds=7)
    inference.add_argument("--batch", default="1,4,16,64", metavar="B,...", help="rows (default: 1,4,16,64)")
    inference.add_argument("--length", metavar="T,...", help="tokens of a row (default: 32, 128, 512, as far as positions reach)")
    for command, seconds in ((train, 1.0), (inference, 0.2)):
        command.add_argument("--seconds", type=float, default=seconds, metavar="S", help=f"of a turn (default: {seconds:g})")
        command.add_argument("--repetitions", type=int, metavar="N", help="in a turn (default: as many as take --seconds)")
        _peers(command, "torch-eager, torch-compile, torch-compile-layers")
    _bench_kind(kinds, "compile", "tracing and compiling the training step", ["config", "against"], rounds=5)
    pipeline = _bench_kind(kinds, "input", "masked batches from a config's rows", ["config"], rounds=5)
    pipeline.add_argument("--batches", type=int, default=500, metavar="N", help="of a turn (default: 500)")
    _peers(pipeline, "collator, collator-of-ids, loader")
    decode = _bench_kind(kinds, "decode", "beam search of a translation model", ["config", "against"], rounds=5)
    decode.add_argument("--sentences", type=int, default=32, metavar="N", help="of one batch of equal lengths (default: 32)")
    decode.add_argument("--source-tokens", type=int, default=25, metavar="N", help="of each of them (default: 25)")
    decode.add_argument("--steps", type=int, default=30, metavar="N", help="target tokens of each of them (default: 30)")
    decode.add_argument("--file-sentences", type=int, default=256, metavar="N", help="of a file of mixed lengths (default: 256)")
    _peers(decode, "marian, marian-sorted")


def _bench_kind(kinds: Any, name: str, help_text: str, config_flags: Sequence[str], rounds: int) -> argparse.ArgumentParser:
    command = _command(kinds, name, help_text, config_flags)
    command.add_argument("--rounds", type=int, default=rounds, metavar="N", help=f"turns that count (default: {rounds})")
    command.add_argument("--out", metavar="FILE", help="a new file for the JSON with all times (default: the table alone)")
    return command


def _peers(command: argparse.ArgumentParser, names: str) -> None:
    command.add_argument("--peer", metavar="NAME,...", help=f"{names} (the extra `parity`)")


def _probe(commands: Any) -> None:
    help_text = "look into a model: what its layers do on one batch"
    kinds = _command(commands, "probe", help_text, []).add_subparsers(dest="kind", metavar="KIND", required=True)
    _probe_kind(kinds, "dependency", "the share that each sublayer has in the final residual stream")
    amplification = _probe_kind(kinds, "amplification", "how much the output changes with the weights, against depth")
    _probe_kind(kinds, "gradients", "the gradient's norm in every layer and sublayer")
    _probe_kind(kinds, "coverage", "how many positions a token draws on: in a head, in a layer, through the stack")
    _probe_kind(kinds, "similarity", "how alike the residual stream is before and after each layer")
    depths, schemes = (
        "6,12,24,48,96,192,384",
        "post_ln, pre_ln, admin_profiled, admin_closed_log, admin_closed_one, deepnorm, rezero",
    )
    amplification.add_argument("--depths", default=depths, metavar="L,...", help=f"layers, with --config (default: {depths})")
    amplification.add_argument("--schemes", metavar="NAME,...", help=f"with --config: some of {schemes} (default: all)")
    amplification.add_argument("--draws", type=int, default=8, metavar="K", help="changes that are averaged (default: 8)")
    amplification.add_argument(
        "--noise", type=float, default=0.001, metavar="X", help="their deviation over that of a fresh weight (default: 0.001)"
    )


def _probe_kind(kinds: Any, name: str, help_text: str) -> argparse.ArgumentParser:
    command = _command(kinds, name, help_text, [])
    command.epilog = (
        "--config=FILE.py:VARIANT instead of RUN: a fresh model; --against=... beside it\noverrides: --config.SECTION.FIELD=VALUE"
    )
    # Neither is needed where a run is given.
    command.set_defaults(partial_flags={"config": "config_fields", "against": "against_fields"})
    command.add_argument("folders", nargs="*", metavar="RUN", help="trained runs, side by side")
    command.add_argument("--step", type=int, help="which checkpoint (default: the newest)")
    command.add_argument("--rows", type=int, default=8, metavar="B", help="of the batch that is looked at (default: 8)")
    command.add_argument("--out", metavar="FILE", help="a new file for the JSON, pictures beside it (default: probe-KIND.json)")
    return command


def _compare(commands: Any) -> None:
    command = _command(commands, "compare", "put runs side by side: a table, report.html and curves", [])
    command.add_argument("folders", nargs="+", metavar="RUN")
    command.add_argument("--out", metavar="FILE", help="the page (default: report.html)")
    command.add_argument("--target", type=float, metavar="LOSS", help="the loss to reach (default: the worst final loss)")
    command.add_argument("--baseline", metavar="RUN", help="the run, or group of runs, to set against (default: the first)")
    command.add_argument("--watch", action="store_true", help="serve the page on this machine and refresh it while runs train")
    command.add_argument("--port", type=int, metavar="N", help="where --watch serves it (default: any free port)")


def _speed(commands: Any) -> None:
    command = _command(commands, "speed", "which shape is faster where, of what mhsh bench wrote: a table and speed.html", [])
    command.add_argument("files", nargs="+", metavar="FILE.json", help="--out of mhsh bench inference or mhsh bench train")
    command.add_argument("--out", default="speed.html", metavar="FILE", help="the page (default: speed.html)")
    command.add_argument("--runs", nargs="+", metavar="RUN", help="runs whose device-hours to --target are asked for")
    command.add_argument("--target", type=float, metavar="LOSS", help="validation loss, nats a predicted token")


def _sweep(commands: Any) -> None:
    command = _command(commands, "sweep", "train a config at every combination of some fields' values, and report", ["config"])
    # An axis names fields as the config file has them, before heads are regrouped.
    command.set_defaults(config_flags=[], partial_flags={"config": "fields"})
    command.add_argument("--workdir", required=True, metavar="DIR", help="the sweep's folder; the same command goes on there")
    command.add_argument(
        "--axes",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE,...",
        help="a field and its values: heads_per_layer=8,4,2,1 seed=0,1,2 lr=1e-3,3e-3 scheme=post_ln,admin model.num_layers=6,18",
    )
    command.add_argument("--dry-run", action="store_true", help="print the plan and what it costs, and stop")
    command.add_argument("--parallel", type=int, default=1, metavar="N", help="cells at once, the cores shared out (default: 1)")
    command.add_argument("--cells", default="1/1", metavar="I/N", help="every N-th cell from the I-th on: this host's share")
    command.add_argument("--retry", action="store_true", help="try failed cells again")


def _sweep_report(commands: Any) -> None:
    command = _command(commands, "sweep-report", "write a sweep's report anew, also while it runs", [])
    command.add_argument("folder", metavar="DIR", help="the sweep's folder")
    command.set_defaults(module="sweep_report")


def _quickstart(commands: Any) -> None:
    command = _command(commands, "quickstart", "train the small comparison and write its report", [])
    command.add_argument("--workdir", default="runs/quickstart", metavar="DIR", help="where the runs go")


def _command(commands: Any, name: str, help_text: str, config_flags: Sequence[str]) -> argparse.ArgumentParser:
    usage = "\n".join(f"--{flag}=FILE.py:VARIANT, its fields overridden with --{flag}.SECTION.FIELD=VALUE" for flag in config_flags)
    parser = commands.add_parser(
        name,
        help=help_text,
        description=help_text,
        epilog=usage,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(config_flags=config_flags, needs_config=True)
    return parser


# In the order of `mhsh --help`.
_COMMANDS = (
    _train,
    _eval,
    _describe,
    _configs,
    _admin,
    _aot,
    _scaling,
    _prepare,
    _finetune,
    _predict,
    _translate,
    _score,
    _import,
    _export,
    _bench,
    _probe,
    _compare,
    _speed,
    _sweep,
    _sweep_report,
    _quickstart,
)
