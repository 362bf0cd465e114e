"""What every test runs under: eight simulated devices, annotated shapes checked at run time."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib.metadata
import itertools
import os
import signal
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
os.environ["JAX_PLATFORMS"] = os.environ.get("JAX_PLATFORMS", "cpu")
# Most of the suite's time is compiling programs that run a few times. So LLVM does not optimise
# them, and what XLA made of a program is kept between tests, runs and clones. In the environment,
# so that the processes that tests start do the same.
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
if importlib.metadata.version("jaxlib").startswith("0.10."):  # halves compiling; gone in 0.12
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"

# A shell without job control starts `bash launch/test &` with Ctrl-C ignored; so would tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import jax
from jaxtyping import install_import_hook

# beartype checks every annotated shape of mhsh, in tests only. It checks no module without one, for
# that takes a tenth of the suite's time.
_SOURCES = [path for path in (ROOT / "mhsh").rglob("*.py") if "jaxtyping" in path.read_text(encoding="utf-8")]
_HOOK = install_import_hook([".".join(path.relative_to(ROOT).with_suffix("").parts) for path in _SOURCES], "beartype.beartype")

import hypothesis
import pytest

from mhsh.training.compiling import private_cache

if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mhsh-tests"
    kept.mkdir(parents=True, exist_ok=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(private_cache(kept))
    jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
# Every command that tests start would compile mhsh's files again (half a second).
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

from mhsh.config.entries import REGISTRIES
from mhsh.config.resolve import from_dict
from mhsh.config.schema import Config
from mhsh.configs import load

REAL_DATA = Path(os.environ.get("MHSH_DATA", ROOT.parent / "shared" / "data"))

jax.config.update("jax_num_cpu_devices", 8)
# No example is timed: a busy machine is not a failure.
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")
MakeConfig = Callable[..., Config]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole runs, which take longest, come first, so that no worker ends long after the other."""
    items.sort(key=lambda item: item.path.parent != ROOT / "tests")


def pytest_collection_finish() -> None:
    """What was imported lives to the end: the garbage collector need not look at it again and
    again (6 % of the suite's time).
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How long the tests of each folder took, of all workers together."""
    seconds: Counter[str] = Counter()
    for report in itertools.chain(*terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            seconds[Path(report.location[0]).parent.name] += report.duration
    terminalreporter.write_line("seconds by folder: " + ", ".join(f"{name} {each:.0f}" for name, each in seconds.most_common()))


def load_fields(task: str, variant: str) -> dict[str, Any]:
    """The fields of configs/<task>.py:<variant>, as main reads them."""
    return load(task).get_config(variant).to_dict()


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What mhsh keeps for its user (MHSH_CACHE) is kept for the tests alone."""
    os.environ["MHSH_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def make_config() -> MakeConfig:
    """make_config("bert", "2l8h", **{"model.num_layers": 3}): a shipped config with fields
    overridden.
    """

    def make(task: str, variant: str, **overrides: Any) -> Config:
        fields = load_fields(task, variant)
        for name, value in overrides.items():
            section, field = name.split(".")
            assert field in fields[section], name
            fields[section][field] = value
        return from_dict(fields)

    return make


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entries that a test adds are gone after it."""
    for registry in REGISTRIES:
        monkeypatch.setattr(registry, "_entries", dict(zip(registry.names(), registry.entries(), strict=True)))
        monkeypatch.setattr(registry, "_origins", {})


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all workers. One at a time makes what is there."""
    root = tmp_path_factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@contextlib.contextmanager
def made_once(folder: Path, name: str) -> Iterator[Path | None]:
    """Where to make `name`; None: another worker has. It appears whole."""
    with open(folder / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / f"{name}.done"
        yield None if done.exists() else folder / name
        done.touch()


@pytest.fixture(scope="session")
def corpus(shared: Path) -> str:
    """The flag that names a small text as data.source."""
    with made_once(shared, "corpus.txt") as path:
        if path:
            lines = [f"The number {n} is followed by the number {n + 1}. It is preceded by {n - 1}." for n in range(900)]
            path.write_text("\n\n".join("\n".join(lines[start : start + 9]) for start in range(0, 900, 9)) + "\n", encoding="utf-8")
    return f"--config.data.source=text:{shared / 'corpus.txt'}"


@pytest.fixture(scope="session")
def unbroken(corpus: str, shared: Path) -> Path:
    """The folder of a tiny run that was never interrupted. Many tests read it; none may change
    it.
    """
    from tests.runs import CONFIG, mhsh

    with made_once(shared, "unbroken") as workdir:
        if workdir:
            done = mhsh("train", *CONFIG, corpus, f"--workdir={workdir}")
            assert done.returncode == 0, done.stderr
    return shared / "unbroken"


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an emulator of Google Cloud Storage with the bucket `runs`."""
    from tests.buckets import emulator

    with emulator(tmp_path_factory.mktemp("emulator") / "log", "runs") as address:
        yield address


@pytest.fixture
def bucket(emulated: str) -> str:
    """The same, where the bucket is empty."""
    with urllib.request.urlopen(f"{emulated}/wipe?keep-buckets=yes", timeout=30):
        return emulated


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real corpora; tests that ask for it are marked `realdata`."""
    if not REAL_DATA.is_dir():
        pytest.skip(f"no real corpora at {REAL_DATA} (set MHSH_DATA)")
    return REAL_DATA
