"""A headless Chromium for tests of what people look at."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from support.ports import free_port
from support.waiting import wait_for


def answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=10).ok
    except requests.RequestException:
        return False


class Browser:
    """A headless Chromium by the WebDriver protocol, which reaches 127.0.0.1 and nothing else."""

    def __init__(self, folder: Path) -> None:
        """folder: for its profile."""
        port = free_port()
        base = f"http://127.0.0.1:{port}"
        self.driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL)
        wait_for(lambda: answers(f"{base}/status"))
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-sync",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-dev-shm-usage",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            f"--user-data-dir={folder}",
            "--window-size=1500,1000",
        ]
        wanted = {"goog:chromeOptions": {"args": flags}, "goog:loggingPrefs": {"browser": "ALL"}}
        made = requests.post(f"{base}/session", json={"capabilities": {"alwaysMatch": wanted}}, timeout=300).json()
        self.at = f"{base}/session/{made['value']['sessionId']}"

    def do(self, what: str, **how: Any) -> Any:
        """A command of the protocol."""
        answer = requests.post(f"{self.at}/{what}", json=how, timeout=300)
        assert answer.ok, answer.text[:500]
        return answer.json()["value"]

    def script(self, code: str) -> Any:
        return self.do("execute/sync", script=code, args=[])

    def text(self) -> str:
        return self.script("return document.body.innerText")

    def open(self, url: str, until: str) -> str:
        """The page's text, once it holds such a text."""
        self.do("url", url=url)
        try:
            wait_for(lambda: re.search(until, self.text()), 240)
        except AssertionError:
            raise AssertionError(f"{url} never said {until!r}, but: {self.text()}") from None
        return self.text()

    def press(self, xpath: str, keys: str = "") -> None:
        """Click, or type."""
        if keys:
            self.do(self.find(xpath) + "/value", text=keys)
        else:
            self.do(self.find(xpath) + "/click")

    def find(self, xpath: str) -> str:
        wait_for(lambda: self.do("elements", using="xpath", value=xpath), seconds=120)
        return "element/" + next(iter(self.do("element", using="xpath", value=xpath).values()))

    def errors(self) -> list[str]:
        """What went wrong since last asked."""
        return [entry["message"] for entry in self.do("se/log", type="browser") if entry["level"] == "SEVERE"]

    @contextmanager
    def wide(self, width: int, height: int = 900, mobile: bool = False) -> Iterator[None]:
        """The page as on a screen of this size meanwhile."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        self.do("goog/cdp/execute", cmd="Emulation.setDeviceMetricsOverride", params=size)
        try:
            yield
        finally:
            self.do("goog/cdp/execute", cmd="Emulation.clearDeviceMetricsOverride", params={})

    def refuses_scripts(self) -> None:
        """The page's policy lets no script run but its own."""
        added = (
            "const s = document.createElement('script'); s.textContent = 'window.pwned = 3'; document.body.append(s)"
        )
        self.script(added)
        assert self.script("return window.pwned === undefined")
        assert any("Content Security Policy" in error for error in self.errors())

    def close(self) -> None:
        requests.delete(self.at, timeout=300)
        self.driver.terminate()
        self.driver.wait(300)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a new profile; the test is skipped where there is none."""
    if not (shutil.which("chromedriver") and shutil.which("chromium")):
        pytest.skip("needs Chromium and its driver (Debian: apt-get install chromium chromium-driver)")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        made = Browser(Path(folder))
        yield made
        made.close()
