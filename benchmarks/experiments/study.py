"""The study "heads or depth?" (docs/evidence.md), a stage at a time: plans, prices, runs and
resumes it.

    bash launch/study STAGE [--dry-run] [--workdir=DIR] [ARGUMENT OF mhsh sweep ...]

DIR (runs/study): DIR/STAGE is the sweep's folder, with its report. The same command goes on where
it stopped. docs/evidence.md and docs/study/plan.md say which stages need a --config.data.source.

    bash launch/study probes
    bash launch/study translations --input=test.en.gz --references=test.de.gz
    bash launch/study page --out=docs/study

probes looks into the reporting runs of heads. translations scores those of multi30k_whole on a test
set. page reports every stage that is there, and those of one question beside each other, in
DIR/published, and puts the results on the page in the folder that --out names, which keeps its
parts of other stages.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.experiments.commands import Commands
from benchmarks.experiments.study_page import BESIDE, PARTS, write_page
from mhsh.cli.compare import CompareOptions, write_report

# Each value of the first axis is read at its best rate: two seeds choose it, the other five report,
# and train at it alone.
CHOICE = "--over=lr --choosing-seeds=2"
SEEDS = f"seed=0,1,2,3,4,5,6 {CHOICE}"
TUNED = f"lr=5e-4,1e-3,2e-3,4e-3,8e-3 {SEEDS}"
FASTER = f"lr=2e-3,4e-3,8e-3,1.6e-2 {SEEDS}"
EIGHT = f"seed=0,1,2,3,4,5,6,7 {CHOICE}"
LENGTHS = "budget=540,1800,5400,18000"
MUON = "--config.optimizer.name=muon"

# By stage: its config; its axes, the compared one first, and first of its values the baseline;
# further flags.
STAGES = {
    "heads": f"study:base heads_per_layer=8,24,12,4,2,1 {TUNED}",
    "heads_own": f"study:base heads_per_layer=8,24,1 {TUNED} --config.model.fans=own",
    "width": f"study:base layers_at_equal_size=3,1,6,12,24 {TUNED}",
    "admin": f"study:base heads_per_layer=8,1 {TUNED}",
    "pre_ln": f"study:base heads_per_layer=8,1 {TUNED} --config.model.residual=pre_ln",
    "completep": f"study:base heads_per_layer=8,1 {TUNED} --config.model.residual=completep",
    "completep_half": f"study:base heads_per_layer=8,1 lr=1e-3,2e-3,4e-3,8e-3,1.6e-2 {SEEDS}"
    " --config.model.residual=completep --config.model.depth_exponent=0.5",
    "deepnorm": f"study:base heads_per_layer=8,1 {TUNED} --config.model.residual=deepnorm",
    "peri_ln": f"study:base heads_per_layer=8,1 {TUNED} --config.model.residual=peri_ln",
    "keel": f"study:base heads_per_layer=8,1 {TUNED} --config.model.residual=keel",
    "longer": f"study:base heads_per_layer=8,24,1 lr=1e-3,2e-3,4e-3,8e-3 {SEEDS} --config.train.num_steps=1200",
    "small": f"study:small heads_per_layer=4,12,2,1 {TUNED}",
    "large": f"study:large heads_per_layer=16,48,1 lr=5e-4,1e-3,2e-3,4e-3 {SEEDS}",
    "more_heads": f"study:base heads_per_layer=16,1 lr=5e-4,1e-3,2e-3,4e-3 {SEEDS}"
    " --config.model.num_heads=16 --config.model.mlp_dim=1024",
    "bert_mini": f"bert:2l4h heads_per_layer=4,1 lr=1e-3,2e-3,4e-3,8e-3 {SEEDS} --config.train.num_steps=2000",
    "bert_base": f"bert:12l12h heads_per_layer=12,1 lr=1e-4,2e-4,4e-4,8e-4 {SEEDS} --config.train.num_steps=4000"
    " --config.optimizer.warmup_steps=400 --config.train.eval_interval=500 --config.train.checkpoint_interval=1000",
    "leaner": f"gpt:6l4h heads_at_equal_width=4,16 depth=6,3 lr=1e-3,2e-3,4e-3 {SEEDS} --config.train.num_steps=1000",
    "numbers": "study:numbers heads_per_layer=8,1 seed=0,1,2",
    "multi30k": "study:multi30k heads_per_layer=8,1 seed=0,1,2",
    "multi30k_whole": f"translation:small heads_per_layer=4,1 lr=1.5e-3,3e-3,6e-3,1.2e-2 seed=0,1,2,3,4,5,6,7,8,9 {CHOICE}",
    "trained": f"study:trained heads_per_layer=8,24,1 {LENGTHS} lr=1e-3,2e-3,4e-3,8e-3 {EIGHT}",
    "trained_muon": f"study:trained heads_per_layer=8,24,1 {LENGTHS} lr=2e-3,4e-3,8e-3,1.6e-2 {EIGHT} {MUON}",
    "decoder": "study:decoder heads_per_layer=4,1 heads_at_equal_width=4,1 budget=850,2550,8500"
    f" lr=2e-3,4e-3,8e-3,1.6e-2 {EIGHT} {MUON}",
    "decoder_kv": f"study:decoder kv_heads_at_equal_size=4,1 budget=850,2550,8500 lr=2e-3,4e-3,8e-3,1.6e-2 {EIGHT} {MUON}",
    "decided": "study:decoder heads_per_layer=4,1 lr=4e-3,5.7e-3,8e-3 seed=0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15"
    f" --over=lr --choosing-seeds=4 --margin=0.02 {MUON} --config.train.num_steps=8500 --config.optimizer.decay_steps=1700",
    "steady": "evidence:stability heads_per_layer=8,24,4,1 scheme=admin,post_ln,pre_ln lr=2e-3,4e-3,8e-3,1.6e-2,3.2e-2"
    " seed=0,1,2,3 --config.model.num_heads=24 --config.model.num_layers=1 --config.model.mlp_dim=768",
    "recall": f"study:recall heads_per_layer=4,2,1 {FASTER} {MUON}",
    "recall_two": f"study:recall heads_per_layer=4,2,1 {FASTER} {MUON} --config.data.source=recall:2"
    " --config.train.num_steps=3000 --config.optimizer.decay_steps=600",
    "recall_longer": f"study:recall heads_per_layer=4,2,1 lr=5e-4,1e-3,2e-3 {EIGHT} {MUON} --config.data.source=recall:2"
    " --config.train.num_steps=10000 --config.optimizer.decay_steps=2000",
    "copying": f"study:recall heads_per_layer=4,2,1 {FASTER} {MUON} --config.data.source=copying:30",
    "books": f"study:decoder heads_per_layer=4,1 lr=4e-3,8e-3,1.6e-2 {EIGHT} {MUON}"
    " --config.train.num_steps=2550 --config.optimizer.decay_steps=510",
    "wider": f"study:decoder heads_per_layer=4,1 lr=5.7e-3,8e-3,1.1e-2 seed=0,1,2,3,4,5 {CHOICE} --margin=0.02 {MUON}"
    " --config.model.embed_dim=128 --config.model.head_dim=32 --config.model.mlp_dim=352 --config.train.batch_size=16"
    " --config.train.num_steps=4300 --config.optimizer.decay_steps=860"
    " --config.train.eval_interval=430 --config.train.eval_batches=64",
    "larger": f"study:larger heads_per_layer=8,1 lr=4e-3,8e-3,1.6e-2 seed=0,1,2,3,4,5 {CHOICE} {MUON}",
    "example": f"quickstart:6l4h_post_ln heads_per_layer=6,1 scheme=admin,post_ln,pre_ln lr=1e-3,2e-3,4e-3 {SEEDS}"
    " --config.model.num_heads=6 --config.model.embed_dim=192 --config.model.mlp_dim=768",
    "stability": "evidence:stability scheme=post_ln,admin,deepnorm,pre_ln,rezero,keel,peri_ln,ln_scaling,completep,hybrid_norm"
    " depth=6,54,384 lr=3e-4,1e-3,3e-3 --config.model.base_layers=6",
}
PROBED, TRANSLATED = "heads", "multi30k_whole"


def stage_words(stage: str) -> tuple[str, list[str], list[str]]:
    """The config of a stage, its axes, and its flags."""
    config, *words = STAGES[stage].split()
    return config, [word for word in words if not word.startswith("--")], [word for word in words if word.startswith("--")]


def run_stage(commands: Commands, workdir: Path, stage: str, arguments: Sequence[str]) -> None:
    """Plans and trains it, where it is not yet; in a dry run the sweep says what it would do."""
    config, axes, flags = stage_words(stage)
    words = ["sweep", f"--config={config}", "--axes", *axes, f"--workdir={workdir / stage}", *flags, *arguments]
    Commands(dry=False).run(*words, *["--dry-run"] * commands.dry)


def probe(commands: Commands, runs: Sequence[Path], out: Path) -> None:
    """Looks into the runs in each way."""
    for kind in ("ablation", "similarity", "coverage"):
        made, batches = out / f"{kind}.json", ["--batches=16"] if kind == "ablation" else []
        commands.run("probe", kind, *runs, *batches, f"--out={made}", made=made)


def translate(commands: Commands, runs: Sequence[Path], out: Path, source: str, references: str) -> None:
    """Translates a test set by each of the runs, and scores the deep shape against the other."""
    files = {run: out / f"{run.name}.de" for run in runs}
    for run, made in files.items():
        commands.run("predict", run, f"--input={source}", f"--output={made}", made=made)
    deep = [made for run, made in files.items() if "heads_per_layer-1_" in run.name]
    shallow = [made for made in files.values() if made not in deep]
    words = ["score", "--hypotheses", *deep, "--baseline", *shallow, f"--references={references}"]
    commands.run(*words, output=out / "scores.json")


def reporting_runs(sweep: Path) -> list[Path]:
    """The runs of a sweep that report, of every shape at its best rate."""
    report = json.loads((sweep / "report.json").read_text(encoding="utf-8"))
    return [sweep / "runs" / run["name"] for run in report["report"]["curves"]["runs"]]


def comparisons(workdir: Path) -> Iterator[tuple[str, CompareOptions]]:
    """The comparison for each part of the page of which there are runs."""
    for part in PARTS:
        named = BESIDE.get(part, (part,))
        there = [stage for stage in named if any((workdir / stage).glob("runs/*/run.json"))]
        if len(there) > (len(named) > 1):  # one stage of several has nothing to stand beside
            is_tuned = all(CHOICE in STAGES[stage] for stage in there)
            chosen = {"over": "lr", "choosing_seeds": 2} if is_tuned else {}
            by = ("heads_per_layer",) if any("scheme=" in STAGES[stage] for stage in there) else ()
            yield part, CompareOptions([str(workdir / stage) for stage in there], by=by, **chosen)


def publish(workdir: Path, published: Path) -> Iterator[Path]:
    """Writes the report of each part of the page of which there are runs; yields its folder."""
    for part, question in comparisons(workdir):
        write_report(question, published / part / "report.html", with_png=True)
        yield published / part


def main(arguments: Sequence[str]) -> None:
    """Does what the arguments say; see above."""
    parser = argparse.ArgumentParser("study", argparse.SUPPRESS, __doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    others = {"probes": (), "translations": ("input", "references"), "page": ("out",)}  # with what they need
    parser.add_argument("stage", choices=(*STAGES, *others), metavar="STAGE")
    parser.add_argument("--dry-run", action="store_true", help="print what it would do")
    parser.add_argument("--workdir", type=Path, default=Path("runs/study"))
    for option in ("--input", "--references", "--out"):
        parser.add_argument(option)
    options, rest = parser.parse_known_args(arguments)
    stage, workdir, commands = options.stage, options.workdir, Commands(options.dry_run)
    if stage in STAGES:
        run_stage(commands, workdir, stage, rest)
        return
    given = " and ".join(f"--{name}=..." for name in others[stage]) or "no arguments"
    if rest or not all(getattr(options, name) for name in others[stage]):
        parser.error(f"{stage} takes {given}{f', not {rest[0]}' if rest else ''}")
    out = workdir / "published"
    if stage == "page":
        written = list(publish(workdir, out))
        if not out.is_dir():
            parser.error(f"nothing has run in {workdir}; run a stage first")
        write_page(out, Path(options.out))
        print(f"Written: {options.out}/index.md, of {len(written)} reports")
        return
    of = PROBED if stage == "probes" else TRANSLATED
    if not (workdir / of / "report.json").exists():
        parser.error(f"run 'bash launch/study {of} --workdir={workdir}' first")
    (out / stage).mkdir(parents=True, exist_ok=True)
    if stage == "probes":
        probe(commands, reporting_runs(workdir / of), out / stage)
    else:
        translate(commands, reporting_runs(workdir / of), out / stage, options.input, options.references)


if __name__ == "__main__":
    main(sys.argv[1:])
