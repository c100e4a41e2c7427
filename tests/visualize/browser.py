"""A headless Chromium for tests of pages, which skip if there is none."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1200,900",
)


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A driver that takes note of console messages and of requests. profile: an empty directory."""
    webdriver = pytest.importorskip("selenium.webdriver")
    service = pytest.importorskip("selenium.webdriver.chrome.service")
    binary, driver_path = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver_path is None:
        pytest.skip("needs chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=service.Service(driver_path))
    try:
        yield driver
    finally:
        driver.quit()


def requests(driver: Any) -> list[str]:
    """Addresses of all that pages asked for since the last call; not of the browser's own tabs."""
    import json

    found = []
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        asked = message["params"]
        if message["method"] == "Network.requestWillBeSent":
            # The tab that the browser opens with asks for files of the browser's own.
            if not asked.get("documentURL", "").startswith("chrome"):
                found.append(asked["request"]["url"])
    return found


def script(driver: Any, code: str) -> Any:
    """The value of an expression on the page."""
    return driver.execute_script(f"return {code}")


def texts_of(driver: Any, selector: str) -> list[str]:
    """The text of each node that a selector finds."""
    nodes = f"[...document.querySelectorAll({selector!r})]"
    found: list[str] = script(driver, f"{nodes}.map(node => node.textContent)")
    return found


def wait_for(found: Callable[[], Any], seconds: int = 60) -> Any:
    """Only what has gone wrong takes as long, on a busy machine as well."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if value := found():
            return value
        time.sleep(0.05)
    raise AssertionError(f"it did not come about in {seconds} seconds")
