"""The environment that produced the numbers of a run: versions, code, devices, numeric settings."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mhsh import __version__
from mhsh.training.compiling import numeric_flags

RECORDED_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "tokenizers")

# The packages whose code decides losses. What mhsh.config decides is in config.json; what watches a
# run changes no number.
CODE_THAT_DECIDES = ("data", "evaluation", "models", "training")
_WATCHING = ("training/trackers.py", "training/watching.py")

# A docstring, another string (a # in it begins no comment), a comment with what is before it, or a
# blank line. A regular expression, as tokens and syntax trees differ between versions of Python.
_STRING_OR_COMMENT = re.compile(
    r"""^([ \t]*)(?:\"{3}.*?(?<!\\)\"{3}|'{3}.*?(?<!\\)'{3})$
      | (\"{3}.*?(?<!\\)\"{3} | '{3}.*?(?<!\\)'{3} | "[^"\\\n]*(?:\\.[^"\\\n]*)*" | '[^'\\\n]*(?:\\.[^'\\\n]*)*')
      | \s*\#[^\n]* | \n(?=\s*\n)""",
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)

# Of jax. jax_random_seed_offset is added to every seed.
_NUMERIC_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_random_seed_offset",
)


def environment() -> dict[str, Any]:
    """Versions, code revision, devices and number of processes, for a JSON file."""
    device = jax.devices()[0]
    versions = {name: importlib.metadata.version(name) for name in RECORDED_PACKAGES}
    return {
        "versions": {"mhsh": __version__, "python": platform.python_version(), **versions},
        "git_revision": git_revision(),
        "devices": {"platform": device.platform, "kind": device.device_kind, "count": jax.device_count()},
        "processes": jax.process_count(),
    }


def git_revision() -> str | None:
    """The commit of the running code, with `+changes` if files differ from it; None outside a
    checkout.
    """
    here = Path(__file__).resolve().parent
    try:
        # An installed wheel may lie in the checkout of something else.
        subprocess.run(["git", "ls-files", "--error-unmatch", __file__], cwd=here, capture_output=True, check=True)
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True).stdout.strip()
        dirty = subprocess.run(["git", "status", "--porcelain"], cwd=here, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None  # no git, or no checkout: the version alone names the code
    return head + ("+changes" if dirty.strip() else "")


@functools.cache
def code_hash() -> str:
    """Sixteen hexadecimal digits over the sources that decide losses, without comments, docstrings
    and blank lines: of the files as they were when this was first called.
    """
    root, digest = Path(__file__).resolve().parents[1], hashlib.sha256()
    for path in sorted(path for package in CODE_THAT_DECIDES for path in (root / package).rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if name not in _WATCHING:
            digest.update(f"{name}\n{strip_comments(path.read_text(encoding='utf-8'))}\n".encode())
    return digest.hexdigest()[:16]


def strip_comments(source: str) -> str:
    """The source without comments and blank lines; docstrings are empty."""

    def replacement(match: re.Match[str]) -> str:
        indent, string = match.groups()
        return string or ("" if indent is None else f'{indent}""')

    return _STRING_OR_COMMENT.sub(replacement, source)


def numerics() -> dict[str, Any]:
    """The settings of jax, XLA and NVIDIA's libraries that change numbers."""
    return {
        **{name: jax.config.values[name] for name in _NUMERIC_SETTINGS},
        "product_bits": product_bits(),
        "xla_flags": numeric_flags(),
        # 0: no TF32 in cuBLAS and cuDNN, whatever else is set.
        "NVIDIA_TF32_OVERRIDE": os.environ.get("NVIDIA_TF32_OVERRIDE"),
    }


@functools.cache
def product_bits() -> int:
    """The number of the 23 bits of a fraction in float32 that a product of matrices keeps by
    default on this device: measured, as the settings say `default` everywhere. 10 is TF32, 7
    bfloat16.
    """
    bits = 1 + np.arange(128) % 23
    exact = np.diag(1 + 0.5**bits).astype(np.float32)
    found = np.asarray(jax.jit(jnp.matmul)(exact, np.eye(128, dtype=np.float32)))
    return int(max(bits[np.diag(found) == np.diag(exact)], default=0))
