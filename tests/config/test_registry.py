"""The registries: mhsh's own entries, and what the documentation says of them."""

from __future__ import annotations

import re

import pytest

from mhsh.config.entries import REGISTRIES, SCHEMES, UPDATE_RULES, variant, variants
from mhsh.config.registry import Registry
from mhsh.errors import UserError
from tests.conftest import ROOT


def test_the_design_shows_every_scheme():
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \| \$", text, re.MULTILINE)) == set(SCHEMES.names())


def test_every_entry_names_its_source():
    assert all(variant.label and variant.growth and variant.source for variant, _ in variants().values())
    assert all(UPDATE_RULES[name].source for name in UPDATE_RULES.names())


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.kind)
def test_names_are_known_without_a_list(registry: Registry) -> None:
    names = registry.names()
    assert len(names) == len(set(names)) > 3 and all(name in registry for name in names)
    assert "none_of_them" not in registry and registry.get("none_of_them") is None
    with pytest.raises(UserError, match=f"unknown {registry.kind} 'none_of_them'; allowed: {names[0]}"):
        registry["none_of_them"]


def test_a_variant_is_a_scheme_and_how_omega_starts():
    assert variant("admin_closed_one")[1] == {"residual": "admin", "admin_omega": "closed_one"}
    assert variant("keel")[1] == {"residual": "keel"}
    with pytest.raises(UserError, match=r"unknown residual scheme 'kel'; did you mean keel\?"):
        variant("kel")
