"""The residual schemes, each by one name: for Admin that of how its omega starts, too."""

from __future__ import annotations

from collections.abc import Mapping

from mhsh.config.schema import ADMIN_OMEGAS, RESIDUALS, ModelConfig

# {name: the fields of `model` that it sets}
SCHEMES: Mapping[str, Mapping[str, str]] = {
    **{residual: {"residual": residual} for residual in RESIDUALS},
    **{
        ("admin" if omega == "profiled" else f"admin_{omega}"): {"residual": "admin", "admin_omega": omega}
        for omega in ADMIN_OMEGAS
    },
}


def scheme_of(model: ModelConfig) -> str:
    """The name in SCHEMES of a model's residual scheme."""
    if model.residual != "admin" or model.admin_omega == "profiled":
        return model.residual
    return f"admin_{model.admin_omega}"
