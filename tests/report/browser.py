"""A headless Chromium, driven over pipes with its own debugging protocol: no driver, no port, no
package needed.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_PATIENCE_S = 60  # for one answer; a hung browser then fails the test and does not hang it


class Browser:
    """One page in one Chromium; as a context manager it ends its own process."""

    def __init__(self, width: int, height: int = 900, dark: bool = False) -> None:
        assert PROGRAM is not None
        self._profile = tempfile.TemporaryDirectory(prefix="browser", ignore_cleanup_errors=True)
        to_child, self._to = os.pipe()
        self._from, from_child = os.pipe()
        flags = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --disable-background-networking"
        # The protocol is spoken on descriptors 3 and 4, which the shell moves ours to.
        command = f'exec "$0" "$@" 3<&{to_child} 4>&{from_child}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, PROGRAM, *flags.split(), "--remote-debugging-pipe", f"--user-data-dir={self._profile.name}"],
            pass_fds=(to_child, from_child),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_child)
        os.close(from_child)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._profile.cleanup()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends one command and waits for its answer; what the browser tells in between goes to
        `events`.
        """
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], _PATIENCE_S)
            assert ready, "the browser does not answer"
            piece = os.read(self._from, 1 << 20)
            assert piece, "the browser has ended"
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(line)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; a promise is waited for."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def open(self, path: Path) -> None:
        """Opens the page in that file and waits until it says that its figure is drawn."""
        self.visit(path.resolve().as_uri())

    def visit(self, address: str) -> None:
        """Opens the page at that address and waits until it says that its figure is drawn."""
        self.call("Page.navigate", url=address)
        self.wait("!!(document.body && document.body.dataset.ready)")

    def wait(self, expression: str) -> None:
        """Waits until the JavaScript expression is true."""
        # Asked anew each time: a promise made before a navigation would die with the old document.
        for _ in range(200):
            if self.evaluate(expression):
                return
            self.evaluate("new Promise(done => setTimeout(done, 100))")
        raise AssertionError(f"never true: {expression}; the page said: {self.complaints()}")

    def press(self, key: str, code: int, text: str = "") -> None:
        """One key, by its DOM name and its virtual key code, as the keyboard sends it."""
        fields: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **fields)
        self.call("Input.dispatchKeyEvent", type="keyUp", **fields)

    def complaints(self) -> list[str]:
        """Everything that the page threw, logged or was refused by its policy."""
        kinds = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        return [json.dumps(event["params"]) for event in self.events if event.get("method") in kinds]

    def requests(self) -> list[str]:
        """The addresses that the page asked for."""
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
