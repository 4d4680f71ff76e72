"""The page in a real browser: what an operator sees, and what their hand does."""

import os
import re
import signal
import subprocess
import sys
import threading
from urllib.parse import urlsplit

import numpy as np
import pytest

from helpers.browser import make_browser
from helpers.consoles import flight, flying, snapshot, state, wait_for
from helpers.policy_files import write_policy
from nopg_robot.console.feed import OperatorConsole
from nopg_robot.flight.log import read_flight
from nopg_robot.run.stop import StopRequest

pytest.importorskip("selenium")
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

pytestmark = pytest.mark.slow

BAND = {
    "level": 0.9,
    "time_s": [0.0, 5.0, 20.0],
    "going": [1.0, 1.0, 1.0],
    "ranges": {"x": ([-0.3, -0.3, -0.3], [0.3, 0.3, 0.3]), "voltage": ([-4.0] * 3, [4.0] * 3)},
}


@pytest.fixture(scope="module")
def chromium():
    browser = make_browser()
    yield browser
    browser.quit()


@pytest.fixture
def browser(chromium):
    """One window, wide, and an empty page at the end."""
    chromium.set_window_size(1280, 900)
    yield chromium
    first, *others = chromium.window_handles
    for handle in others:
        chromium.switch_to.window(handle)
        chromium.close()
    chromium.switch_to.window(first)
    problems = [entry for entry in chromium.get_log("browser") if "Failed to load resource" not in entry["message"]]
    chromium.get("about:blank")
    # Among them whatever the page's own rules of safety forbid.
    assert problems == []


def text(browser, name):
    return browser.find_element(By.ID, name).text


def shows(browser, name, pattern, timeout_s=10.0):
    """Wait until an element's text fits."""
    return wait_for(lambda: re.search(pattern, text(browser, name)), timeout_s)


def open_page(browser, flown):
    browser.get(flown.console.address)
    shows(browser, "phase", "RUN")


def test_values_are_live(browser):
    with flying() as flown:
        flown.console.connected(is_hardware=True)
        open_page(browser, flown)
        assert text(browser, "title") == "policy.onnx"
        assert text(browser, "moves") == "real rig"
        seen = {wait_for(lambda: text(browser, "x"))}
        wait_for(lambda: seen.add(text(browser, "x")) or len(seen) > 5)
        assert all(re.fullmatch(r"[+−]\d+\.\d mm", value) for value in seen), seen
        assert text(browser, "x-limit") == "limit ±357 mm"
        assert text(browser, "theta") == "−2.9°"
        assert text(browser, "theta-limit") == "limit ±20.1°"
        assert re.fullmatch(r"\+[123]\.\d\d V", text(browser, "volt"))
        assert text(browser, "volt-limit") == "limit ±5 V, asked +1.00 V"
        left = [float(shows(browser, "remaining", r"^([\d.]+) s$")[1]) for _ in range(2)]
        assert 0.0 < left[1] <= left[0] < 20.0
        assert text(browser, "no-interventions") == "No intervention."
        flown.interventions["voltage"] = 7
        shows(browser, "interventions", r"voltage\n.*\n?7×")
        assert not browser.find_element(By.ID, "alarm").is_displayed()


def pixels(browser, chart):
    """Share of a chart's pixels that are at all green where the band would be, in the newest tenth of the picture."""
    script = """
    const canvas = document.getElementById(arguments[0]), width = canvas.width, height = canvas.height;
    const data = canvas.getContext("2d").getImageData(Math.round(0.93 * width), 0, Math.round(0.06 * width), height).data;
    let n = 0;
    for (let i = 0; i < data.length; i += 4)
      n += data[i + 3] > 20 && data[i + 1] > data[i] + 20 && data[i + 1] > data[i + 2] + 20;
    return n / (data.length / 4);
    """
    return browser.execute_script(script, chart)


def test_the_predicted_band(browser):
    with flying(band=BAND) as flown:
        open_page(browser, flown)
        assert text(browser, "band-text") == "90 % of the predicted flights, for 20.0 s"
        wait_for(lambda: pixels(browser, "chart-x") > 0.5)
        # There is no prediction of the angle.
        assert pixels(browser, "chart-theta") == 0.0
    with flying() as flown:
        open_page(browser, flown)
        wait_for(lambda: text(browser, "x") != "–")
        assert not browser.find_element(By.ID, "band-legend").is_displayed()
        assert pixels(browser, "chart-x") == 0.0


@pytest.mark.parametrize("key", [None, Keys.SPACE, Keys.ESCAPE], ids=["button", "space", "escape"])
def test_stopping(browser, key):
    with flying() as flown:
        open_page(browser, flown)
        if key is None:
            browser.find_element(By.ID, "stop").click()
        else:
            # Wherever the focus is.
            browser.execute_script("document.activeElement.blur()")
            browser.find_element(By.TAG_NAME, "body").send_keys(key)
        wait_for(lambda: flown.stop.reason == "the console", 5.0)
        shows(browser, "stop-word", "STOPPED")
        shows(browser, "volt", r"^\+0\.00 V$")
        shows(browser, "alarm", "^The motor is cut")
        flown.end(outcome="stopped", reason="stopped by the console", exit_code=130)
        shows(browser, "alarm", r"^Flight over. STOPPED: stopped by the console \(exit code 130\)$")
        assert text(browser, "phase") == "STOPPED"
        assert not browser.find_element(By.ID, "stop").is_enabled()


def test_other_keys_stop_nothing(browser):
    with flying() as flown:
        open_page(browser, flown)
        browser.find_element(By.TAG_NAME, "body").send_keys("x", Keys.TAB, Keys.ARROW_DOWN)
        browser.refresh()
        shows(browser, "phase", "RUN")
        assert not flown.console.stop_asked


def test_enter_on_the_button_that_has_the_focus(browser):
    with flying() as flown:
        open_page(browser, flown)
        assert browser.switch_to.active_element.get_attribute("id") == "stop"
        browser.switch_to.active_element.send_keys(Keys.ENTER)
        wait_for(lambda: flown.stop.reason, 5.0)


def test_old_data_look_old(browser):
    with flying() as flown:
        open_page(browser, flown)
        assert "stale" not in browser.find_element(By.TAG_NAME, "body").get_attribute("class")
        flown.is_silent = True
        shows(browser, "alarm", r"^No data for [1-9]\.\d s\. Look at the rig\.$")
        assert "stale" in browser.find_element(By.TAG_NAME, "body").get_attribute("class")
        # A stop that nobody sees is not called one.
        browser.find_element(By.ID, "stop").click()
        shows(browser, "alarm", "^THE STOP IS NOT CONFIRMED. Press the emergency stop.$")
        flown.is_silent = False
        shows(browser, "stop-word", "STOPPED")
        shows(browser, "alarm", "^The motor is cut")


@pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")
def test_a_console_that_dies_is_seen(browser):
    with flying() as flown:
        open_page(browser, flown)
        os.kill(flown.console._process.pid, signal.SIGKILL)
        shows(browser, "alarm", r"^No data for \d+\.\d s: the console does not answer. Look at the rig.$")


def test_a_program_that_dies_is_seen(browser):
    """The system closes its end of the pipe, whatever has killed it."""
    with OperatorConsole(linger_s=20.0) as console:
        console.begin_flight(flight(), StopRequest())
        console.update(snapshot(1.0))
        browser.get(console.address)
        shows(browser, "phase", "RUN")
        console._process.stdin.close()
        shows(browser, "alarm", "^The program has died without saying how the flight ended. Switch the amplifier off.$")
        assert text(browser, "stop-word") == "No program"
        assert text(browser, "volt") == "not known"


def test_closed_reloaded_opened_twice(browser):
    with flying() as flown:
        open_page(browser, flown)
        # Reloaded: the past is there again.
        wait_for(lambda: len(browser.execute_script("return points")) > 50)
        browser.refresh()
        shows(browser, "phase", "RUN")
        wait_for(lambda: len(browser.execute_script("return points")) > 50, 2.0)
        # More pages than a browser has connections to a host, and all of them live.
        for _ in range(7):
            browser.switch_to.new_window("window")
            open_page(browser, flown)
        newest = text(browser, "x")
        wait_for(lambda: text(browser, "x") != newest)
        # Closed: the flight goes on.
        browser.close()
        browser.switch_to.window(browser.window_handles[-1])
        before = state(flown.console.address)["n_points"]
        wait_for(lambda: state(flown.console.address)["n_points"] > before + 5)
        assert flown.stop.reason is None
        # A stop in one is seen in the others.
        browser.find_element(By.ID, "stop").click()
        wait_for(lambda: flown.stop.reason, 5.0)
        browser.switch_to.window(browser.window_handles[0])
        shows(browser, "stop-word", "STOPPED")


def test_opened_after_the_end(browser):
    with flying() as flown:
        wait_for(lambda: state(flown.console.address)["n_points"] > 10)
        flown.end()
        browser.get(flown.console.address)
        shows(browser, "alarm", r"^Flight over. FINISHED: 20 s are over \(exit code 0\)$")
        assert len(browser.execute_script("return points")) > 10
        assert not browser.find_element(By.ID, "stop").is_enabled()
        # Space does no harm any more.
        browser.find_element(By.TAG_NAME, "body").send_keys(Keys.SPACE)
        assert not flown.console.stop_asked
    # Two flights of one program need no other address, but this one is gone with its program.
    wait_for(lambda: flown.console._process.poll() is not None)
    shows(browser, "alarm", "^Flight over. FINISHED")
    with pytest.raises(WebDriverException, match="ERR_CONNECTION_REFUSED"):
        browser.get(flown.console.address)


def test_the_next_flight_of_the_same_program(browser):
    with flying() as flown:
        open_page(browser, flown)
        flown.end()
        shows(browser, "alarm", "^Flight over")
        flown.console.begin_flight(flight(title="second.onnx"), flown.stop)
        flown.console.update(snapshot(1.0))
        shows(browser, "title", "second.onnx")
        assert browser.find_element(By.ID, "stop").is_enabled()


def test_who_may_not_sees_nothing(browser):
    with flying() as flown:
        parts = urlsplit(flown.console.address)
        by_name = flown.console.address.replace("127.0.0.1", "localhost")
        for address in (f"http://{parts.netloc}/", f"http://{parts.netloc}/wrong/", by_name):
            browser.get(address)
            assert browser.find_element(By.TAG_NAME, "body").text == "Forbidden", address


def test_another_site_cannot_press_the_button(browser, tmp_path):
    """Even one that knows the address, which it does not, cannot read an answer or show the page inside of its own."""
    with flying() as flown:
        page = tmp_path / "evil.html"
        page.write_text(f"<iframe src='{flown.console.address}'></iframe>")
        browser.get(page.as_uri())
        answer = browser.execute_async_script(
            "const done = arguments[1]; fetch(arguments[0]).then((a) => a.text()).then(done, (e) => done('' + e))",
            f"{flown.console.address}state",
        )
        assert "TypeError" in answer
        browser.switch_to.frame(0)
        assert "RUN" not in browser.find_element(By.TAG_NAME, "body").text
        browser.switch_to.default_content()
        browser.get_log("browser")


def test_a_narrow_window_has_everything(browser):
    with flying(band=BAND) as flown:
        browser.set_window_size(500, 700)
        open_page(browser, flown)
        width, content, height = browser.execute_script(
            "return [innerWidth, document.documentElement.scrollWidth, innerHeight]"
        )
        assert content <= width
        button = browser.find_element(By.ID, "stop").rect
        # In view without scrolling, and large.
        assert browser.execute_script("return document.getElementById('stop').getBoundingClientRect().bottom") <= height
        assert button["height"] >= 90
        assert button["width"] > 0.8 * width


@pytest.mark.real_time
def test_a_flight_stopped_from_the_page(browser, tmp_path):
    """``nopg-deploy`` itself, in real time, stopped while the cart is driven to the end of the rail."""
    policy = write_policy(tmp_path / "policy.onnx")
    command = [sys.executable, "-u", "-m", "nopg_robot.commands.deploy", str(policy), "--console", "--plain", "--no-plot"]
    process = subprocess.Popen(
        [*command, "--log", str(tmp_path / "f.npz")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(iter(process.stdout.readline, "")))
    reader.start()
    try:
        address = wait_for(lambda: re.search(r"Console: (\S+) ", "".join(lines)), 30.0)[1]
        browser.get(address)
        shows(browser, "phase", "HOME", 30.0)
        assert text(browser, "moves") == "simulated"
        shows(browser, "volt", r"^−1\.50 V$")
        browser.find_element(By.TAG_NAME, "body").send_keys(Keys.SPACE)
        shows(browser, "alarm", r"^Flight over. STOPPED: stopped by the console \(exit code 130\)$")
        shows(browser, "volt", r"^\+0\.00 V$")
        assert process.wait(20) == 130
        reader.join(10)
        assert "STOPPED in phase 'home': stopped by the console" in "".join(lines)
        assert process.stderr.read() == ""
        # The program is gone, and the page can still be opened.
        browser.refresh()
        shows(browser, "alarm", "^Flight over. STOPPED")
    finally:
        process.kill()
        process.wait()
        reader.join(10)
        process.stdout.close()
        process.stderr.close()
    log = read_flight(tmp_path / "f.npz")
    assert log.complete
    assert (log.interventions[-1].reason, log.interventions[-1].message) == ("operator", "stopped by the console")
    assert log.phase[-1] == "home"
    assert np.abs(log.applied_volt[:-1]).max() == pytest.approx(1.5)
    assert log.applied_volt[-1] == 0.0
