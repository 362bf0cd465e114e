"""The pages of the API reference: which modules are on which. mkdocstrings reads their source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class ReferencePage(NamedTuple):
    """One page of the reference."""

    title: str
    subject: str
    modules: tuple[str, ...]


PAGES: Mapping[str, ReferencePage] = {
    "mhsh": ReferencePage(
        "mhsh",
        "What `import mhsh` has: `mhsh.load` and its `LoadedModel`, `mhsh.train`, `mhsh.configs.get`, `mhsh.UserError`. "
        "[From a checkpoint to logits](../logits.md) shows them at work.",
        ("inference", "configs", "training.loop", "errors"),
    ),
    "config": ReferencePage(
        "Configs",
        "A config as frozen Structs, its checks, and how two of them differ.",
        ("config.schema", "config.fields", "config.resolve"),
    ),
    "models": ReferencePage(
        "Models",
        "Pure `flax.linen` modules. Shapes are in the letters of [the design](../design.md#2-the-mathematics).",
        (
            "models.build",
            "models.residual",
            "models.schemes",
            "models.attention",
            "models.transformer",
            "models.bert",
            "models.seq2seq",
            "models.losses",
            "models.admin",
            "models.costs",
            "models.types",
        ),
    ),
    "training": ReferencePage(
        "Training",
        "One sharded step, its optimizer and its state; and how a trained model is restored.",
        ("training.step", "training.optimizer", "training.state", "training.sharding", "training.checkpoints.restore"),
    ),
    "run_folders": ReferencePage(
        "Run folders",
        "What a run leaves behind, read without jax, and whether it trained.",
        ("storage.run_folder", "storage.outcome"),
    ),
    "probes": ReferencePage(
        "Probes",
        "What the layers of a model do on one batch.",
        ("probes.coverage", "probes.dependency", "probes.gradient_flow", "probes.similarity", "probes.amplification"),
    ),
    "report": ReferencePage(
        "Reports",
        "Runs and sweeps side by side: loaded, grouped, measured, checked for equal conditions, compared, and made into a "
        "report. None of it imports jax.",
        (
            "verdict.runs",
            "verdict.experiment",
            "verdict.outcomes",
            "verdict.estimate",
            "verdict.tuning",
            "verdict.fairness",
            "verdict.findings",
            "report.report",
            "report.build",
        ),
    ),
}


def page_markdown(page: ReferencePage) -> str:
    """One page: a section a module."""
    return "\n\n".join([f"# {page.title}", page.subject, *(f"::: mhsh.{module}" for module in page.modules)]) + "\n"
