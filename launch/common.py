"""The options of the launchers in Python, and their errors in one line."""

import argparse
import re
import sys
from pathlib import Path
from typing import Any, NoReturn

SCRIPT = Path(sys.argv[0])
TOGETHER = ("train", "work")  # what several processes of mhsh do together; all else is done by one
OWN_FLAGS = ("--distributed", "--coordinator", "--num-processes", "--process-id")


def fail(message: str) -> NoReturn:
    print(f"{SCRIPT.name}: {message}", file=sys.stderr)
    sys.exit(2)


def refuse_credentials(arguments: list[str]) -> None:
    """Process lists, logs and run folders show arguments. Names what it refuses, not its value."""
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        assigned = equals and re.fullmatch(r"[A-Z_][A-Z0-9_]*", name) and re.search(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", name)
        if assigned or re.fullmatch(r"--(.*[-_.])?(key|token|secret|password|passwd|credentials?)", name.lower()):
            fail(f"{name} looks like a credential, which others could read; use a service account or a secret store instead")
        if re.search(r"://[^/@]+:[^/@]+@", argument):
            fail("an address with a password in it is among the arguments; use a service account or a secret store instead")


def pattern_type(pattern: str, meaning: str, make: Any = str) -> Any:
    """The type of an argument that is such a text."""

    def check(text: str) -> Any:
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"{text!a} must be {meaning}")
        return make(text)

    return check


class Parser(argparse.ArgumentParser):
    """Errors are one line. The comment at the top of the launcher is its help."""

    def format_help(self) -> str:
        return re.sub(r"(?m)^# ?", "", re.match(r"#!.*\n((?:#.*\n)*)", SCRIPT.read_text(encoding="utf-8"))[1])

    def error(self, message: str) -> NoReturn:
        fail(f"{message}; see launch/{SCRIPT.name} --help (arguments of mhsh come after --)")

    def parse(self) -> tuple[argparse.Namespace, list[str]]:
        """The launcher's own options, and the arguments of mhsh, which come after `--`."""
        cut = [*sys.argv, "--"].index("--")
        options, unknown = self.parse_known_args(sys.argv[1:cut])
        if unknown:
            self.error(f"{unknown[0].split('=')[0]} is not an option")
        arguments = sys.argv[cut + 1 :]
        for argument in arguments:
            if argument.split("=")[0] in OWN_FLAGS:
                fail(f"{argument.split('=')[0]} is set by this launcher; leave it out")
        refuse_credentials(arguments)
        return options, arguments
