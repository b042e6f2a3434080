"""Pages in a real browser: Debian's chromium, driven by selenium (``make test-viewer``).

Where either is missing these tests are skipped and say so, unless ``LATECOMER_BROWSER=required``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REMEDY = "(make test-viewer; Debian: apt-get install chromium chromium-driver)"


def _lacking() -> str:
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"no {program} here {REMEDY}"
    try:
        import selenium  # noqa: F401
    except ImportError:
        return f"selenium is not installed {REMEDY}"
    return ""


class Browser:
    """One window; every page that it opens must be silent on the console and load nothing."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(
        self,
        path: Path,
        *,
        theme: str = "light",
        still: bool = True,
        size: tuple[int, int] = (1400, 900),
    ) -> None:
        """Open a page as a reader with these wishes does."""
        wishes = {
            "prefers-color-scheme": theme,
            "prefers-reduced-motion": "reduce" if still else "no-preference",
        }
        features = [{"name": name, "value": value} for name, value in wishes.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.get("about:blank")  # so a page that is open already is read again
        self.driver.get(path.as_uri())
        self.settle()

    def run(self, script: str, *arguments: object) -> Any:
        """What a script returns."""
        return self.driver.execute_script(script, *arguments)

    def settle(self) -> None:
        """Wait until what was asked for is drawn."""
        self.driver.execute_async_script(
            "const done = arguments[0]; const frame = requestAnimationFrame;"
            "frame(() => frame(() => frame(() => done())))"
        )

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        from selenium.webdriver.common.action_chains import ActionChains

        for key in keys:
            ActionChains(self.driver, duration=0).send_keys(key).perform()
        self.settle()

    def wait_for(self, script: str, timeout_s: float = 60.0) -> None:
        """Wait until a script's value is true."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, timeout_s, 0.05).until(lambda _: self.run(f"return {script}"))

    def complaints(self) -> list[str]:
        """What the console says, and what the page loaded."""
        messages = [entry["message"] for entry in self.driver.get_log("browser")]
        loaded = self.run("return performance.getEntriesByType('resource').map((e) => e.name)")
        return messages + loaded


@pytest.fixture(scope="session")
def window() -> Iterator[Browser]:
    """The one browser of this process."""
    lacking = _lacking()
    if lacking:
        if os.environ.get("LATECOMER_BROWSER") == "required":
            pytest.fail(lacking)
        pytest.skip(lacking)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    options.add_argument("--headless=new")
    options.add_argument("--disable-dev-shm-usage")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # chromium's sandbox does not run as root
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield Browser(driver)
    driver.quit()


@pytest.fixture
def browser(window: Browser) -> Iterator[Browser]:
    """The browser, which must have nothing to complain about at the end."""
    yield window
    complaints = window.complaints()
    assert not complaints, complaints
