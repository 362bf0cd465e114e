"""What mhsh takes of the libraries that it stands on, and which of them."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement

from tests.conftest import ROOT

SOURCES = {str(path.relative_to(ROOT)): path for path in sorted((ROOT / "mhsh").rglob("*.py"))}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDED = [Requirement(line) for group in [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()] for line in group]
TESTED = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines()]
# Of these mhsh takes private names, classes to derive from, files or formats.
BOUNDED = {"jax", "flax", "optax", "orbax-checkpoint", "grain", "array-record", "tensorflow-datasets", "gcsfs", "sacrebleu"}
BOUNDED |= {"cyclopts", "ml-collections"}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("need", NEEDED, ids=str)
def test_bounds_admit_what_was_tested_and_end_there_where_insides_matter(need: Requirement) -> None:
    for tested in TESTED:
        if normal(tested.name) == normal(need.name):
            assert need.specifier.contains(str(tested.specifier).removeprefix("=="))
    assert normal(need.name) not in BOUNDED or any(part.operator == "<" for part in need.specifier)


def root(node: ast.expr) -> str:
    """The name that an attribute begins with: a in a.b.c."""
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return node.id if isinstance(node, ast.Name) else ""


def replaced(tree: ast.Module) -> Iterator[str]:
    """Attributes of imported modules and classes that a file assigns or deletes."""
    imported = {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and root(node) in imported:
            yield ast.unparse(node)
        if isinstance(node, ast.Call) and root(node.func) in ("setattr", "delattr"):
            yield ast.unparse(node)


def test_nothing_of_a_library_is_replaced() -> None:
    """sys.unraisablehook is there to be set."""
    assert {what for path in SOURCES.values() for what in replaced(ast.parse(path.read_text()))} == {"sys.unraisablehook"}
    assert list(replaced(ast.parse("import a.b as c\nc._d.e = 1\ndel c.f\nsetattr(c, 'g', 1)")))  # the rule finds such


def test_one_file_takes_private_names_of_jax() -> None:
    private = re.compile(r"\b(jax|jaxlib|flax|optax|orbax|grain)(\.\w+)*\._[a-z]\w*|\bfrom jaxlib import")
    assert [name for name, path in SOURCES.items() if private.search(path.read_text())] == ["mhsh/cluster/coordination.py"]
