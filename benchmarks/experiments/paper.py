"""Every experiment of "Multi-head or Single-head?" (arXiv 2106.09650). docs/paper.md has claims,
recipes with their sources, and the paper's figures.

    bash launch/paper [NAME ...] [--dry-run] [--workdir=DIR] [--scale=S] [--test=FILE,FILE]
        [--config.SECTION.FIELD=VALUE ...]

NAME is one of the experiments, by default all. DIR (runs/paper) keeps what is done; the same
command goes on. --dry-run prints the commands, and the table with prices and the figures obtained
so far, some seconds a row.

--scale=0.001 tries everything out on two cores: steps times S (at least 4), one layer before
regrouping, with its heads; D = 48, H = 4, F = 96, rows of 32 tokens, 4 a step, float32, 512 words,
one seed, one task of GLUE, and made-up data where none is named. Its figures mean nothing.

--config.data.source=text:... and --config.data.validation_source=... are the data of the one NAME
that is given. --test=newstest2014.en,newstest2014.de is the test set of wmt and gain; of iwslt it
is iwslt14/test.de,iwslt14/test.en.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from benchmarks.experiments.commands import Commands
from benchmarks.experiments.paper_figures import BASE, GROUPINGS, LARGE, PAIR, SHAPES, print_table

# Devlin et al. 2018 (arXiv 1810.04805), section 4.1: the rate is chosen on the development set.
# Appendix A.3 has no 4e-5, but also batches of 16 and 2 or 4 epochs, which are not tried. Seeds,
# and what the text of 2106.09650 has: unknown.
RATES = "5e-5,4e-5,3e-5,2e-5"
TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
SEEDS, IWSLT_SEEDS = "0,1,2", "0,1,2,3,4"
STEPS = {1: 900_000, 2: 100_000}  # of BERT's phases


def flags(section: str, **values: object) -> list[str]:
    """The overrides of some fields."""
    return [f"--config.{section}.{name}={value}" for name, value in values.items()]


class Scale:
    """The flags that --scale adds to those of a model, of the rows of a corpus, of a fine-tuning
    and so on; none where it is 1.
    """

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.model, self.rows, self.pairs, self.spans, self.short, self.timed, self.probed = ([] for _ in range(7))
        if factor < 1:
            sizes = dict(num_layers=1, head_dim=4, embed_dim=48, mlp_dim=96, compute_dtype="float32")
            self.model = flags("model", **sizes, remat_policy="none", vocab_size=512)
            self.short = flags("data", sequence_length=32)
            self.rows = [*self.short, *flags("data", max_predictions=5), *flags("train", eval_batches=2)]
            decoder = flags("model", num_decoder_layers=1, vocab_size=400)
            self.pairs = [*decoder, *self.short, *flags("data", max_length_ratio=9)]
            self.spans = flags("data", stride=8, max_question_length=12)
            self.timed, self.probed = ["--rounds=3", "--seconds=0.02"], ["--rows=2"]

    def __bool__(self) -> bool:
        return self.factor < 1

    def steps(self, steps: int) -> list[str]:
        """The flags of a training of so many steps."""
        if not self:
            return []
        count = max(4, int(steps * self.factor + 0.5))
        begun = [*flags("train", num_steps=count), *flags("optimizer", warmup_steps=count // 4)]
        return [*begun, *flags("train", batch_size=4, log_interval=count // 4, eval_interval=0, checkpoint_interval=0)]


class Paper:
    """The experiments, each a method."""

    def __init__(self, options: argparse.Namespace, commands: Commands, data: Sequence[str], fields: Sequence[str]) -> None:
        self.scale = scale = Scale(options.scale)
        workdir = options.workdir or Path(f"runs/paper{f'-{options.scale:g}' if scale else ''}")
        self.runs, self.made = workdir / "runs", workdir / "made"
        self.commands, self.data, self.fields = commands, list(data), list(fields)
        made = [self.made / "test.en", self.made / "test.de"] if scale else None
        self._test = options.test.split(",") if options.test else made
        self._seeds, self._iwslt_seeds = ("0", "0") if scale else (SEEDS, IWSLT_SEEDS)

    def _data(self, made_up: Sequence[str], else_: Sequence[str] = ()) -> list[str]:
        """The data that are named, or what --scale makes up, or the default ones."""
        return self.data or list(made_up if self.scale else else_)

    def _need(self, run: str, experiments: str) -> None:
        if not self.commands.dry and not (self.runs / run / "run.json").exists():
            fail(f"{self.runs / run} is missing; run {experiments} first")

    def pretrain(self, phases: Sequence[int], shapes: Sequence[str], residual: str = "") -> None:
        """Pre-trains in the phases of Devlin et al., from rows that are prepared once."""
        scale, runs, source = self.scale, self.runs, [*self.data]
        if not (scale or self.commands.dry or source or (runs / "rows1/validation/index.json").exists()):
            fail("which corpus? give --config.data.source=text:...")
        for phase in phases:
            made, name = runs / f"rows{phase}", f"phase{phase}"
            if phase == 2:
                source += flags("data", vocab_path=runs / "rows1/vocab.txt")
                source += flags("train", start_from=runs / f"{shapes[0]}-phase1")
            words = [f"--config=bert:{shapes[0]}-{name}", *scale.model, *scale.rows, *source, f"--out={made}"]
            self.commands.run("prepare", *words, made=made / "validation/index.json")
            for shape in shapes:
                out = f"{runs / shape}{residual and '-'}{residual}"
                begin = flags("train", start_from=f"{out}-phase1") if phase == 2 else []
                words = [f"--config=bert:{shape}-{name}", f"--config.data.source=arrayrecord:{made}", *begin]
                words += [*(flags("model", residual=residual) if residual else ()), *scale.model, *scale.rows]
                self.commands.run("train", *words, *scale.steps(STEPS[phase]), *self.fields, f"--workdir={out}-{name}")

    def _pairs(self, config: str, out: Path) -> list[str]:
        """Prepares the rows of a translation; the flags of what trains on them."""
        source = self._data(flags("data", source="numbers:2000", validation_source=""))
        words = [f"--config=translation:{config}", *self.scale.model, *self.scale.pairs, *source, f"--out={out}"]
        self.commands.run("prepare", *words, made=out / "validation/index.json")
        return flags("data", source=f"arrayrecord:{out}", validation_source="")

    def _predict(self, run: Path, test: Path | str, out: Path, *words: str) -> None:
        given = [f"--average={1 if self.scale else 10}", *words, f"--input={test}", f"--output={out}"]
        self.commands.run("predict", run, *given, made=out)

    def translate(self, shapes: Sequence[str], residual: str = "") -> None:
        """Trains, and where no scheme is named translates the test set."""
        scale, runs = self.scale, self.runs
        test = self._test or ["newstest2014.en", "newstest2014.de"]
        pairs = self._pairs(shapes[0], runs / "pairs")
        for shape in shapes:
            out = runs / (f"{shape}-{residual}" if residual else shape)
            words = [*pairs, *(flags("model", residual=residual) if residual else ()), *scale.model, *scale.pairs]
            words += [*scale.steps(500_000), *self.fields, f"--workdir={out}"]
            self.commands.run("train", f"--config=translation:{shape}", *words)
            if not residual:
                translated = runs / f"{shape}.de"
                self._predict(out, test[0], translated)
                words = [f"--hypotheses={translated}", f"--references={test[1]}"]
                self.commands.run("score", *words, output=runs / f"{shape}.bleu.json")

    def iwslt(self) -> None:
        """Both shapes with every seed, and the difference of their BLEU."""
        scale, sweep = self.scale, self.runs / "iwslt"
        test = self._test or ["iwslt14/test.de", "iwslt14/test.en"]
        words = [*self._pairs("iwslt_6l4h", self.runs / "iwslt_pairs"), *scale.model, *scale.pairs, *scale.steps(100_000)]
        axes = ["--axes", "heads_per_layer=4,1", f"seed={self._iwslt_seeds}"]
        self.commands.run("sweep", "--config=translation:iwslt_6l4h", *axes, *words, *self.fields, f"--workdir={sweep}")
        translated: dict[int, list[Path]] = {4: [], 1: []}
        for seed, heads in itertools.product(self._iwslt_seeds.split(","), translated):
            cell = f"heads_per_layer-{heads}_seed-{seed}"
            translated[heads].append(sweep / f"{cell}.en")
            self._predict(sweep / "runs" / cell, test[0], sweep / f"{cell}.en", "--beam=5", "--length-penalty=1")
        words = ["--hypotheses", *translated[1], "--baseline", *translated[4], f"--references={test[1]}", "--lowercase"]
        self.commands.run("score", *words, output=self.runs / "iwslt.bleu.json")

    def fine_tune(self, config: str, *words: str) -> None:
        """The four BERTs on a task."""
        for shape in (*BASE, *LARGE):
            self._need(f"{shape}-phase2", "bert_base and bert_large")
            given = [f"--config={config}", *words, *self.scale.steps(4), *self.fields, f"--seeds={self._seeds}", *self.scale.short]
            out = self.runs / f"{config.replace(':', '-')}-{shape}"
            self.commands.run("finetune", self.runs / f"{shape}-phase2", *given, f"--workdir={out}")

    def glue(self) -> None:
        """All tasks, at all rates."""
        for task in ("rte",) if self.scale else TASKS:
            self.fine_tune(f"glue:{task}", *self._data(flags("data", source=f"tsv:{self.made}")), f"--rates={RATES}")

    def squad(self, config: str, version: str) -> None:
        """A version of SQuAD."""
        made = f"json:{self.made}/{version}.json"
        real = flags("data", source=f"json:train-{version}.json", validation_source=f"json:dev-{version}.json")
        self.fine_tune(config, *self._data(flags("data", source=made, validation_source=made), real), *self.scale.spans)

    def bench(self, kind: str, config: str, shapes: Sequence[str], *words: str) -> None:
        """The two shapes beside each other."""
        out, scale = self.runs / f"{kind}-{shapes[0]}.json", self.scale
        sizes = [*scale.model, *(scale.rows if config == "bert" else scale.pairs), *(flags("train", batch_size=4) if scale else ())]
        both = [*sizes, *(each.replace("--config", "--against", 1) for each in sizes)]
        pair = [f"--config={config}:{shapes[0]}", f"--against={config}:{shapes[1]}"]
        self.commands.run("bench", kind, *pair, *both, *words, f"--out={out}", made=out)

    def speed(self) -> None:
        """Inference of all pairs."""
        small = ["--batch=1", "--length=32"] if self.scale else []
        for pair in (BASE, LARGE):
            self.bench("inference", "bert", pair, *self.scale.timed, *small)
        few = ["--sentences=2", "--steps=4", "--file-sentences=4", "--rounds=3"] if self.scale else []
        self.bench("decode", "translation", PAIR, *few)

    def device_hours(self) -> None:
        """Training of all pairs."""
        for config, pair in (("bert", BASE), ("bert", LARGE), ("translation", PAIR)):
            self.bench("train", config, pair, *self.scale.timed)

    def positions(self) -> None:
        """How many positions the heads of a layer attend to."""
        for first, second in ([f"{shape}-phase2" for shape in BASE], [f"{shape}-phase2" for shape in LARGE], PAIR):
            self._need(first, "wmt, bert_base and bert_large")
            out = self.runs / f"positions-{first}.json"
            words = ["coverage", self.runs / first, self.runs / second, *self.scale.probed, f"--out={out}"]
            self.commands.run("probe", *words, made=out)

    def example(self) -> None:
        """The picture of the paper's first page, on the quickstart's text."""
        shape = ["--config=quickstart:6l4h_post_ln", *flags("model", num_heads=6, embed_dim=192, mlp_dim=768)]
        axes = ["--axes", "heads_per_layer=6,1", "scheme=post_ln,admin", f"seed={self._seeds}"]
        words = [*self.scale.model[:5], *self.scale.short, *self.scale.steps(300), *self.data, *self.fields]
        self.commands.run("sweep", *shape, *axes, *words, f"--workdir={self.runs / 'example'}")

    def stability(self) -> None:
        """The three deep shapes with Post-LN."""
        self.translate(["48l1h"], "post_ln")
        self.pretrain([1], ["144l1h", "384l1h"], "post_ln")

    def perform(self, name: str) -> None:
        """The commands of an experiment."""
        experiments = {
            "example": self.example,
            "wmt": lambda: self.translate(PAIR),
            "iwslt": self.iwslt,
            "bert_base": lambda: self.pretrain([1, 2], BASE),
            "bert_large": lambda: self.pretrain([1, 2], LARGE),
            "stability": self.stability,
            "glue": self.glue,
            "squad_v1": lambda: self.squad("squad:v1", "v1.1"),
            "squad_v2": lambda: self.squad("squad:v2", "v2.0"),
            "speed": self.speed,
            "gain": lambda: self.translate(GROUPINGS),
            "device_hours": self.device_hours,
            "positions": self.positions,
        }
        experiments[name]()

    def make_up(self) -> None:
        """Data of --scale: three test sentences, an RTE and questions on colours."""
        (self.made / "RTE").mkdir(parents=True, exist_ok=True)
        (self.made / "test.en").write_text("one\ntwenty\nfifteen\n")
        (self.made / "test.de").write_text("eins\nzwanzig\nfünfzehn\n", encoding="utf-8")
        colours = ("red", "green", "blue", "gold")
        rows = ["index\tsentence1\tsentence2\tlabel"]
        for number, (a, b) in enumerate(itertools.product(colours, colours)):
            rows.append(f"{number}\tThe hat is {a}.\tIt is {b}.\t{'entailment' if a == b else 'not_entailment'}")
        for name in ("train.tsv", "dev.tsv"):
            (self.made / "RTE" / name).write_text("".join(row + "\n" for row in rows))
        for version, more in {"v1.1": {}, "v2.0": {"is_impossible": False}}.items():
            articles = []
            for colour in colours:
                asked = {"id": colour, "question": "Which?", "answers": [{"text": colour, "answer_start": 11}], **more}
                articles.append({"title": colour, "paragraphs": [{"context": f"The hat is {colour}.", "qas": [asked]}]})
            (self.made / f"{version}.json").write_text(json.dumps({"version": version[1:], "data": articles}))


def fail(message: str) -> NoReturn:
    """Ends with one line, and status 2."""
    print(f"paper: {message}", file=sys.stderr)
    sys.exit(2)


def main(arguments: Sequence[str]) -> None:
    """Does what the arguments say; see above."""
    parser = argparse.ArgumentParser("paper", argparse.SUPPRESS, __doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--dry-run", action="store_true", help="print what it would do")
    parser.add_argument("--workdir", type=Path)
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--test")
    options, rest = parser.parse_known_args(arguments)
    data = [each for each in rest if each.startswith("--config.data.")]
    fields = [each for each in rest if each.startswith("--config.") and each not in data]
    names = options.names or list(SHAPES)
    for unknown in [*(name for name in names if name not in SHAPES), *(each for each in rest if each not in (*data, *fields))]:
        fail(f"{unknown} is unknown; experiments: {' '.join(SHAPES)}")
    if not 0 < options.scale <= 1:
        fail(f"--scale={options.scale:g} is not above 0 and at most 1")
    if data and len(names) > 1:
        fail(f"{data[0].partition('=')[0]} is the data of one experiment; name it, as in bash launch/paper glue {data[0]}")
    paper = Paper(options, Commands(options.dry_run), data, fields)
    if not options.dry_run:
        paper.runs.mkdir(parents=True, exist_ok=True)
        if paper.scale and not (paper.made / "v2.0.json").exists():
            paper.make_up()
    for name in names:
        print(f"{name}:" if options.dry_run else f"== {name}", flush=True)
        paper.perform(name)
    print()
    print_table(paper.runs, names, f"{options.scale:g}" if paper.scale else "")


if __name__ == "__main__":
    main(sys.argv[1:])
