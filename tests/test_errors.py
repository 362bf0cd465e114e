"""What an error suggests: a name that was meant, a command that works."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mhsh.errors import install_command
from tests.conftest import ROOT


def test_a_checkout_installs_an_extra_by_its_name(tmp_path, monkeypatch):
    bin_folder = Path(sys.executable).parent
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", str(bin_folder), prepend=os.pathsep)
    assert install_command("gcs") == "pip install -e '.[gcs]'"
    monkeypatch.chdir(tmp_path)
    assert install_command("gcs") == f"pip install -e '{ROOT}[gcs]'"
    monkeypatch.setenv("PATH", "")  # another pip would install for another Python
    assert install_command("gcs") == f"{sys.executable} -m pip install -e '{ROOT}[gcs]'"
