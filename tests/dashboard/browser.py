"""A real browser with nobody at it: it is told what to do as its own developer tools do.

Over two pipes, so that there is no port and nothing to install; every wait has a deadline.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.nodes import eventually

CALL_SECONDS, STOP_SECONDS = 30.0, 10.0
SHOWN_SECONDS = 120.0  # a page that simulates shares the machine with what else runs there
# In a container there is no user namespace for its sandbox; it is shown nothing but our pages.
CHROMIUM = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
_ENDS_WITH_US = ("setpriv", "--pdeathsig", "KILL")
_READS, _WRITES = 3, 4  # the descriptors at which it has its pipes
_ABOVE = 10  # ours are none of those
_CODES = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "ArrowLeft": 37, "ArrowRight": 39}
_TEXTS = {"Enter": "\r", " ": " "}
_SHIFT = 8


class Browser:
    """What goes to it and comes from it, of all its pages."""

    def __init__(self, hears: int, says: int) -> None:
        self._heard, self._said = hears, says
        self._number, self._rest = 0, b""

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """What it answers; what it tells meanwhile nobody asked for is left out."""
        self._number += 1
        asked: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session:
            asked["sessionId"] = session
        os.write(self._said, json.dumps(asked).encode() + b"\0")
        deadline = time.monotonic() + CALL_SECONDS
        while True:
            told = self._message(deadline)
            if told.get("id") == self._number:
                assert "error" not in told, f"{method}: {told['error']}"
                result: dict[str, Any] = told["result"]
                return result

    @contextmanager
    def tab(self) -> Iterator[Tab]:
        """Of somebody who was never here: nothing kept of other tabs, and gone afterwards."""
        somebody = self.call("Target.createBrowserContext")["browserContextId"]
        try:
            made = self.call("Target.createTarget", url="about:blank", browserContextId=somebody)
            found = self.call("Target.attachToTarget", targetId=made["targetId"], flatten=True)
            tab = Tab(partial(self.call, session=found["sessionId"]))
            tab.call("Emulation.setFocusEmulationEnabled", enabled=True)
            yield tab
        finally:
            self.call("Target.disposeBrowserContext", browserContextId=somebody)

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            left = max(0.0, deadline - time.monotonic())
            assert select.select([self._heard], [], [], left)[0], "the browser says nothing"
            came = os.read(self._heard, 1 << 20)
            assert came, "the browser is gone"
            self._rest += came
        told, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(told)
        return message


class Tab:
    """One page, by its address, and whoever sits at its keyboard."""

    def __init__(self, call: Callable[..., dict[str, Any]]) -> None:
        self.call = call

    def open(self, address: str, ready: str) -> None:
        """And wait until that is so, in JavaScript."""
        self.call("Page.navigate", url=address)
        self.until(ready)

    def tell(self, script: str) -> Any:
        """The value of an expression, or of what it promises."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, f"{script}: {found['exceptionDetails']}"
        return found["result"].get("value")

    def until(self, script: str) -> None:
        eventually(lambda: self.tell(script), SHOWN_SECONDS)

    def press(self, key: str, modifiers: int = 0) -> None:
        code = {"key": key, "windowsVirtualKeyCode": _CODES[key], "modifiers": modifiers}
        code["code"] = "Space" if key == " " else key
        text = {"text": _TEXTS[key]} if key in _TEXTS else {}
        kind = "keyDown" if text else "rawKeyDown"
        self.call("Input.dispatchKeyEvent", type=kind, **code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    def press_back(self) -> None:
        self.press("Tab", _SHIFT)

    def prefer(self, **features: str) -> None:
        """What whoever sits there has set: `prefers_color_scheme="dark"`."""
        told = [{"name": one.replace("_", "-"), "value": set_} for one, set_ in features.items()]
        self.call("Emulation.setEmulatedMedia", features=told)

    def widen(self, pixels: int) -> None:
        size = {"width": pixels, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def roles(self) -> list[dict[str, Any]]:
        """What a screen reader is told of, in the order of reading: `role`, `name`, properties."""
        nodes = {one["nodeId"]: one for one in self.call("Accessibility.getFullAXTree")["nodes"]}
        return [*_read(nodes, next(iter(nodes)))]


@contextmanager
def browsing(browser: str, directory: Path) -> Iterator[Browser]:
    """A browser of its own, which is gone afterwards; it keeps its things in that directory."""
    pipes = [_above(end) for _ in range(2) for end in os.pipe()]
    reads, says, hears, writes = pipes
    shell = f'exec "$@" {_READS}<&{reads} {_WRITES}>&{writes}'
    options = (*CHROMIUM, "--remote-debugging-pipe", f"--user-data-dir={directory}")
    command = [*_ENDS_WITH_US, "bash", "-c", shell, "bash", browser, *options, "about:blank"]
    process = subprocess.Popen(
        command, pass_fds=(reads, writes), start_new_session=True, stderr=subprocess.DEVNULL
    )
    try:
        os.close(pipes.pop(3))
        os.close(pipes.pop(0))
        yield Browser(hears, says)
    finally:
        for end in pipes:
            os.close(end)
        os.killpg(process.pid, signal.SIGKILL)  # its own, all of which began with it
        process.wait(STOP_SECONDS)


def _above(end: int) -> int:
    moved = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _ABOVE)
    os.close(end)
    return moved


def _read(nodes: dict[str, dict[str, Any]], here: str) -> Iterator[dict[str, Any]]:
    one = nodes[here]
    if not one["ignored"]:
        name = one.get("name", {}).get("value", "")
        more = {of["name"]: of["value"].get("value") for of in one.get("properties", ())}
        yield {"role": one["role"]["value"], "name": name, **more}
    for child in one.get("childIds", ()):
        if child in nodes:
            yield from _read(nodes, child)
