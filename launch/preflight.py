"""Checks a run on TPU slices before a slice is asked for.

    python -m launch.preflight --accelerator-type=v5litepod-16 -- train --config=... ...

is how launch/tpu_vm asks. It prints all problems, a line each, and ends with status 2.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

from mhsh.cli.parser import parse
from mhsh.config.schema import Config
from mhsh.configs import shipped_name
from mhsh.errors import UserError
from mhsh.planning.roofline import CHIPS, Chip
from mhsh.sweep.folder import SweepFolder
from mhsh.training.plan import Devices, plan_run

# An accelerator type's first part: the chip, and how many of the number's units a chip has. The
# number counts chips from v5e on, but TensorCores, two a chip, for v4 and v5p.
# docs.cloud.google.com/tpu/docs/v4, v5e, v5p, v6e
ACCELERATORS = {"v4": ("v4", 2), "v5litepod": ("v5e", 1), "v5p": ("v5p", 2), "v6e": ("v6e", 1)}

EMBEDDED = ("stdlib", "numbers", "recall", "copying")  # kinds of source that come with Python and mhsh
# Shipped configs whose recipe is meant for a real corpus.
_FOR_A_CORPUS = ("bert", "translation")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self.prog}: {message}")


def chips_of(accelerator_type: str) -> tuple[Chip, int]:
    """The kind and number of chips of one slice. Raises UserError where no such type is known."""
    kind, _, number = accelerator_type.partition("-")
    if kind not in ACCELERATORS or not re.fullmatch("[1-9][0-9]*", number) or int(number) % ACCELERATORS[kind][1]:
        known = ", ".join(f"{name}-N" for name in ACCELERATORS)
        raise UserError(f"--accelerator-type={accelerator_type} is not known; known are {known}, for example v5litepod-16")
    name, units = ACCELERATORS[kind]
    return CHIPS[name], int(number) // units


def fit(config: Config, chip: Chip, num_chips: int, num_slices: int = 1) -> str:
    """Says under which remat policy a step fits so many chips: the one that `auto` would choose, or
    the config's own. Raises UserError where it fits under none, or the mesh or the batch does not
    divide over the chips.
    """
    # Nobody pays for a slice to learn that the compiler needs no less than is counted.
    plan = plan_run(config, Devices(num_chips, num_slices, "tpu", chip.hbm_bytes)).count_activations()
    if plan.refusal:
        raise UserError(f"{num_chips} chips: {plan.refusal}")
    return f"{num_chips} x {chip.device_kind}, {plan.remat}"


def data_problems(config: Config) -> Iterator[str]:
    """A line for each file that the config names and a worker cannot read: a new VM has the
    checkout and the buckets.
    """
    sources = {"data.source": config.data.source, "data.validation_source": getattr(config.data, "validation_source", "")}
    paths = {"data.vocab_path": config.data.vocab_path, "train.start_from": config.train.start_from}
    for field, source in sources.items():
        kind, _, rest = source.partition(":")
        if kind == "tfds":
            yield f"{field} = {source}: no worker has it; mhsh prepare it, copy that into a bucket: arrayrecord:gs://BUCKET/FOLDER"
        elif kind not in EMBEDDED:
            paths[field] = rest or source
    for field, path in paths.items():
        if any(part and not part.startswith("gs://") for part in path.split(",")):
            yield f"{field}: no worker has {path}; copy it into a bucket and name it gs://BUCKET/..."


def check(accelerator_type: str, slices: int, arguments: Sequence[str]) -> tuple[list[str], str]:
    """All problems of `mhsh ARGUMENT ...` on so many slices, a line each, and how it fits."""
    problems: list[str] = []

    @contextlib.contextmanager
    def collect_problem() -> Iterator[None]:
        try:
            yield
        except UserError as error:
            problems.append(str(error))

    parser = _Parser(prog="mhsh train", add_help=False, allow_abbrev=False)
    parser.add_argument("--config", required=True)
    parser.add_argument("--workdir", required=True)
    chips, config, fits = None, None, ""
    with collect_problem():
        chips = chips_of(accelerator_type)
    if arguments[0] == "work":
        with collect_problem():
            run = parse("work", arguments[1:])  # executes what --with names
            fits = _fit_sweep(run.args[0], chips, slices) if run is not None else ""
        return problems, fits
    if arguments[0] != "train":
        return problems, f"mhsh {arguments[0]} is not checked before"
    with collect_problem():
        run = parse("train", arguments[1:])  # the same, and refuses what mhsh would
        if run is None:  # its help is printed
            return problems, ""
        options, rest = parser.parse_known_args(arguments[1:])
        config = run.keywords["given"].config
        if not options.workdir.startswith("gs://"):
            problems.append(
                f"--workdir={options.workdir} is lost with the slice, and no two workers share it; take gs://BUCKET/RUN"
            )
        name = options.config.partition(":")[0]
        named = any(argument.split("=")[0] == "--config.data.source" for argument in rest)
        if (shipped_name(name) or name) in _FOR_A_CORPUS and config.data.source in EMBEDDED and not named:
            problems.append(
                f"--config={options.config} would train on the small embedded text of {config.data.source}; give "
                f"--config.data.source=... of your corpus, or --config.data.source={config.data.source} if it is meant"
            )
    if config is not None:
        problems += data_problems(config)
    if config is not None and chips is not None:
        with collect_problem():
            fits = fit(config, chips[0], chips[1] * slices, slices)
    return problems, fits


def _fit_sweep(sweep: str, chips: tuple[Chip, int] | None, slices: int) -> str:
    """How the cells of a sweep fit, where all have the data that they need."""
    if not sweep.startswith("gs://"):
        raise UserError(f"mhsh work {sweep}: no worker has it; plan the sweep in a bucket: gs://BUCKET/SWEEP")
    lines: dict[str, None] = {}
    for cell in SweepFolder(sweep).read_plan().cells:
        for problem in data_problems(cell.config):
            raise UserError(f"cell {cell.name}: {problem}")
        if chips is not None:
            lines[fit(cell.config, chips[0], chips[1] * slices, slices)] = None
    return "; ".join(lines)


def main() -> int:
    """Prints how it fits, or all problems on the error stream."""
    parser = _Parser(prog="preflight", allow_abbrev=False)
    parser.add_argument("--accelerator-type", required=True)
    parser.add_argument("--slices", type=int, default=1)
    cut = [*sys.argv, "--"].index("--")
    options = parser.parse_args(sys.argv[1:cut])
    problems, fits = check(options.accelerator_type, options.slices, sys.argv[cut + 1 :])
    print(*problems, sep="\n", file=sys.stderr) if problems else print(fits)
    return 2 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
