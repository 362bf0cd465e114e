"""How many planted faults the tests of one file find, by cosmic-ray's mutation operators.

  python benchmarks/mutants.py mhsh/models/schemes.py tests/models/test_residual.py --sample=40

Each mutant is the file with one operator, number, comparison or keyword changed. It is killed when
one of the tests fails, cannot be collected, or takes ten times as long as without it. The sample is
chosen by a hash of the changed line, so that two versions of a file share most of it. Needs
cosmic-ray beside the dev extra. Works on a copy of the tracked files. Prints a Markdown row and the
mutants that survived.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import difflib
import hashlib
import importlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).resolve().parent.parent

# Imported once: each mutant runs in a fork of this process. No backend is started here.
PRELOADED = ("beartype", "flax.linen", "hypothesis", "jax", "optax")


@dataclasses.dataclass(frozen=True)
class Mutant:
    """The whole mutated file, and the lines that differ."""

    code: str
    change: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--sample", type=int, default=40)
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout")
    options = parser.parse_args()
    sys.dont_write_bytecode = True  # a mutant of the same size and second must not run another's bytecode
    for name in PRELOADED:
        importlib.import_module(name)
    warnings.simplefilter("ignore", RuntimeWarning)  # jax warns of every fork
    source = (options.root / options.file).read_text(encoding="utf-8")
    mutants = sorted(set(mutants_of(source)), key=lambda mutant: hashlib.sha256(mutant.change.encode()).digest())
    with tempfile.TemporaryDirectory() as folder:
        copy = copy_of(options.root, Path(folder))
        begin = time.monotonic()
        if not passes(copy, options.tests, 3600):
            sys.exit(f"the tests fail without a mutant: {' '.join(options.tests)}")
        limit = 60 + 10 * (time.monotonic() - begin)
        sample, survivors = mutants[: options.sample], []
        for mutant in sample:
            (copy / options.file).write_text(mutant.code, encoding="utf-8")
            if passes(copy, options.tests, limit):
                survivors.append(mutant)
                print(f"survived:\n{mutant.change}", flush=True)
    killed = len(sample) - len(survivors)
    print(f"| {options.file} | {len(mutants)} | {len(sample)} | {killed} | {killed / len(sample):.0%} |")


def mutants_of(source: str) -> Iterator[Mutant]:
    """Every mutant that differs in more than annotations and docstrings."""
    tree, original = get_ast(source), executed_code(source)
    for name in operator_names():
        operator_class = get_operator(name)
        if operator_class.arguments():
            continue
        operator = operator_class()
        for occurrence in range(sum(len(list(operator.mutation_positions(node))) for node in ast_nodes(tree))):
            code = mutate_code(source, operator, occurrence)
            with contextlib.suppress(SyntaxError):
                if code is not None and executed_code(code) != original:
                    lines = difflib.unified_diff(source.split("\n"), code.split("\n"), lineterm="", n=0)
                    yield Mutant(code, "\n".join(line for line in lines if line[:2] not in ("--", "++", "@@")))


def executed_code(source: str) -> str:
    """The syntax tree without docstrings and annotations."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
                argument.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant("annotation")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant("docstring")
    return ast.dump(tree)


def copy_of(root: Path, folder: Path) -> Path:
    """The tracked files of a checkout in `folder`."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    for name in names.rstrip("\0").split("\0"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, folder / name)
    return folder


def passes(copy: Path, tests: list[str], limit: float) -> bool:
    """Whether the tests pass in a fork of this process, within `limit` seconds."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.chdir(copy)
        sys.path.insert(0, str(copy))
        os.environ["PYTHONPATH"] = str(copy)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
        quiet = ["-q", "-n", "0", "--dist", "no", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        os._exit(int(pytest.main(["-x", *quiet, *tests])))
    begin = time.monotonic()
    while time.monotonic() - begin < limit:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


if __name__ == "__main__":
    main()
