"""Commands of mhsh, one after the other, that go on where they stopped."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from pathlib import Path


class Commands:
    """Runs commands; with `dry` prints them instead."""

    def __init__(self, dry: bool) -> None:
        self.dry = dry

    def run(self, *words: object, made: Path | None = None, output: Path | None = None) -> None:
        """mhsh with these arguments, unless it has made its file already.

        Args:
          made: the file; None: the command goes on by itself.
          output: the file that its standard output becomes; then also the one it makes.

        Raises SystemExit where the command fails, with its status.
        """
        arguments, made = [str(word) for word in words], made or output
        if self.dry:
            print(f"    {shlex.join(['mhsh', *arguments])}{f' > {output}' if output else ''}")
        elif made is None or not made.exists():
            part = output.with_name(f"{output.name}.part") if output else None
            status = _status([sys.executable, "-m", "mhsh", *arguments], part)
            if status:
                sys.exit(status)
            if part and output:
                part.replace(output)


def _status(command: list[str], output: Path | None) -> int:
    """The exit status of a command. A Ctrl-C is for the command, which saves its state."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        if output is None:
            return subprocess.run(command, check=False).returncode
        with output.open("wb") as file:
            return subprocess.run(command, stdout=file, check=False).returncode
    finally:
        signal.signal(signal.SIGINT, before)
