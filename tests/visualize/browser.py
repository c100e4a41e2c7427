"""A headless Chromium for tests of pages. Tests that need it are skipped if there is none."""

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
    """Yield a driver that logs console messages and requests, or skip the test.

    Args:
        profile: an empty directory.
    """
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
    """Return the addresses that pages have requested since the last call."""
    import json

    found = []
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        asked = message["params"]
        if message["method"] == "Network.requestWillBeSent":
            # The tab that the browser opens first requests internal files.
            if not asked.get("documentURL", "").startswith("chrome"):
                found.append(asked["request"]["url"])
    return found


def script(driver: Any, code: str) -> Any:
    """Evaluate a JavaScript expression on the page."""
    return driver.execute_script(f"return {code}")


def texts_of(driver: Any, selector: str) -> list[str]:
    """Return the text of each node that a selector matches."""
    nodes = f"[...document.querySelectorAll({selector!r})]"
    found: list[str] = script(driver, f"{nodes}.map(node => node.textContent)")
    return found


def wait_for(found: Callable[[], Any], seconds: int = 60) -> Any:
    """Wait until a function returns a true value, and return it.

    The default limit is for busy machines: only a failure takes so long.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if value := found():
            return value
        time.sleep(0.05)
    raise AssertionError(f"it did not come about in {seconds} seconds")
