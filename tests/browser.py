"""A headless browser, driven by the DevTools protocol over pipes: what a page's reader sees."""

from __future__ import annotations

import base64
import functools
import http.server
import json
import os
import select
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
"""The installed browser. Without one, tests that need it skip."""
SECONDS = 60.0
"""Longest wait for an answer or a page."""


class Browser:
    """One process of the browser with one tab."""

    def __init__(self, folder: Path):
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"]
        # the browser reads commands from descriptor 3 and answers on 4
        shell = ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "bash"]
        self._process = subprocess.Popen(
            [*shell, str(PROGRAM), *flags, f"--user-data-dir={folder}", "about:blank"],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._number, self._session = b"", 0, ""
        self._events: list[dict[str, Any]] = []
        target = next(x for x in self.ask("Target.getTargets")["targetInfos"] if x["type"] == "page")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> Any:
        """The answer to a command. **Raises:** `RuntimeError` if it is refused, `TimeoutError`."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        answer = self._until(lambda answer: answer.get("id") == self._number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _until(self, is_last: Any) -> dict[str, Any]:
        end = time.monotonic() + SECONDS
        while True:
            while b"\0" not in self._buffer:
                ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
                if not ready or not (data := os.read(self._read, 1 << 20)):
                    raise TimeoutError(f"the browser did not answer in {SECONDS:g} s")
                self._buffer += data
            text, _, self._buffer = self._buffer.partition(b"\0")
            message = json.loads(text)
            if is_last(message):
                return message
            self._events.append(message)

    def open(self, address: str) -> list[str]:
        """Open a page and wait until it is loaded. **Returns:** its errors: of scripts, of the console, of requests."""
        self._events.clear()
        failure = self.ask("Page.navigate", url=address).get("errorText")
        if failure:
            return [f"{address}: {failure}"]
        if not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._events.append(self._until(lambda event: event.get("method") == "Page.loadEventFired"))
        self.run("new Promise(done => setTimeout(done, 0))")  # scripts that wait for the load have run
        return [text for event in self._events if (text := _error(event))]

    def run(self, script: str) -> Any:
        """The value of an expression of JavaScript in the page, a promise's too."""
        done = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            raise RuntimeError(f"{script}: {done['exceptionDetails']['text']}")
        return done["result"].get("value")

    def broken_pictures(self) -> list[str]:
        """The sources of pictures that have no size, those out of sight included."""
        return self.run(
            "Promise.all(Array.from(document.images, async image => { image.loading = 'eager';"
            " await image.decode().catch(() => null); return image.naturalWidth ? '' : image.src.slice(0, 100) }))"
            ".then(sources => sources.filter(source => source))"
        )

    def requests(self) -> list[str]:
        """The addresses that the page asked for since it was opened."""
        sent = [event for event in self._events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def screenshot(self, file: Path, width: int = 1280, height: int = 1600) -> None:
        """Write a picture of the page's beginning."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        file.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        self._session = ""
        try:
            self.ask("Browser.close")
            self._process.wait(SECONDS)
        except (OSError, TimeoutError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)


def _error(event: dict[str, Any]) -> str:
    """The text of an event that is an error, else an empty text."""
    name, params = event.get("method"), event.get("params", {})
    if name == "Runtime.exceptionThrown":
        return f"exception: {params['exceptionDetails']}"
    if name == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
        return f"console: {params['args']}"
    if name == "Log.entryAdded" and params["entry"]["level"] == "error":
        return f"log: {params['entry']['text']} {params['entry'].get('url', '')}"
    return ""


@contextmanager
def opened(folder: Path) -> Iterator[Browser]:
    """A browser that keeps its files in a folder."""
    browser = Browser(folder)
    try:
        yield browser
    finally:
        browser.close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Nothing is written."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server of a folder, on this machine alone."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
