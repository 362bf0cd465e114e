"""Signals: the first is remembered, the second ends the process at once."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from mhsh.training.signals import Interruption
from tests.conftest import ROOT

PROGRAM = """
import os, signal
from mhsh.training.signals import Interruption
number = signal.Signals({number})
with Interruption() as interruption:
    os.kill(os.getpid(), number)
    print("first:", interruption.signal, flush=True)
    os.kill(os.getpid(), number)
    print("still here", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_process_at_once(number):
    program = PROGRAM.format(number=int(number))
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == f"first: {int(number)}\n"
    assert done.returncode == -number


def test_outside_nothing_is_changed():

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with Interruption() as interruption:
        assert interruption.signal is None
        assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
    assert {number: signal.getsignal(number) for number in before} == before
