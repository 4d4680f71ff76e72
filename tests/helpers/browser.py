"""A real browser without a window: Debian's chromium, driven by selenium."""

import os
import shutil

import pytest


def make_browser():
    """A chromium; tests are skipped where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        # Where CI has installed it, leaving tests out is a failure.
        assert "BROWSER_TOOLS" not in os.environ, "there is no chromium with its driver"
        pytest.skip("there is no chromium with its driver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.add_argument("--headless=new")
    options.add_argument("--disable-gpu")
    options.add_argument("--window-size=1280,900")
    # Windows that lie behind others are drawn as well.
    options.add_argument("--disable-backgrounding-occluded-windows")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        # As it must be in containers, where everything is root's.
        options.add_argument("--no-sandbox")
        options.add_argument("--disable-dev-shm-usage")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
