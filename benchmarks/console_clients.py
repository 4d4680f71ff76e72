"""
Those who look at the operator's console while ``console.py`` measures. A process each, which imports little, so that it is
there at once:

    python benchmarks/console_clients.py reads|never_reads|in_browser ADDRESS
"""

import contextlib
import json
import shutil
import socket
import sys
import time
from urllib.parse import urlsplit
from urllib.request import urlopen


def reads(address: str) -> None:
    """A page, as far as the console can tell."""
    n_points = 0
    while True:
        with urlopen(f"{address}state?after={n_points}") as answer:
            n_points = json.load(answer)["n_points"]
        time.sleep(0.1)


def never_reads(address: str) -> None:
    """Connects, asks until no more requests are taken, and comes again when it is sent away."""
    parts = urlsplit(address)
    request = f"GET {parts.path}state HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode()
    while True:
        with contextlib.suppress(OSError), socket.create_connection((parts.hostname, parts.port)) as connection:
            while True:
                connection.sendall(request)


def in_browser(address: str) -> None:
    """The page itself."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        browser.get(address)
        # Until the other end is closed.
        sys.stdin.read()
    finally:
        browser.quit()


if __name__ == "__main__":
    {"reads": reads, "never_reads": never_reads, "in_browser": in_browser}[sys.argv[1]](sys.argv[2])
