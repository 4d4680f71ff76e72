"""The page of a report: no text that people supply becomes markup, and nothing in it can run or fetch anything."""

import json
import re
from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser

import gymnasium as gym
import numpy as np
import pytest

from helpers.browser import make_browser
from helpers.reports import line_data, plane_model, quick_report, section
from helpers.verdict_figures import STRESS
from nopg_robot.commands.preflight import reports_beside
from sb3_nopg import NOPGD
from sb3_nopg.report.making import PolicyReport
from sb3_nopg.report.page import write_report
from sb3_nopg.report.stress import StressPicture
from sb3_nopg.report.summary import CandidateFigures, ReportSummary
from sb3_nopg.report.trajectories import TrajectoryFigures
from sb3_nopg.report.verdict import MEANINGS

pytestmark = pytest.mark.slow

# Ends every context that a text could stand in, then begins something else.
MARKUP = """</script></td>'"><script>alert(1)</script><img src=x onerror='alert(1)'>&lt;{{ 7 * 7 }}"""


class Tags(HTMLParser):
    """Tags of a page, and which attributes they have."""

    def __init__(self, page: str):
        super().__init__()
        self.found: list[tuple[str, ...]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, *(name for name, _ in attrs)))


def page_of(report: PolicyReport, folder) -> str:
    return write_report(report, folder / "report.html").read_text(encoding="utf-8")


def with_text(value, text: str):
    """The same record with all of its texts replaced."""
    if isinstance(value, str):
        return text
    if isinstance(value, tuple | list):
        return type(value)(with_text(item, text) for item in value)
    if is_dataclass(value):
        return replace(value, **{field.name: with_text(getattr(value, field.name), text) for field in fields(value)})
    return value


@pytest.fixture(scope="module")
def full() -> PolicyReport:
    """A report in which every part of the page has something to say."""
    report = quick_report(plane_model(initial_states=[[0.8, -0.8], [3.0, 3.0]]), limits=["s[0] < 0.5"])
    assert report.summary.support.worst_states
    followed = TrajectoryFigures(
        10, 4, 0.5, 0.25, 0.25, True, 0.5, 0.2, 0.8, "last", True, 3.0, "speed", 0.02, 0.4, -1.0, 0.1, 1
    )
    summary = replace(
        report.summary,
        trajectories=followed,
        notes=("a note",),
        system=("a finding",),
        candidates=(CandidateFigures("own", "half", -1.0, 0.5, 3),),
        margin="a margin",
        stress=STRESS,
    )
    rigs = StressPicture(STRESS, np.array([[0.1, 0.5, 0.9], [0.2, 0.7, 0.3]]), np.array([True, False, False]))
    return replace(report, summary=summary, stress=rigs)


@pytest.mark.usefixtures("without_pictures")
def test_no_text_becomes_markup(full, tmp_path):
    harmless, nasty = (
        replace(with_text(full, text), summary=replace(with_text(full.summary, text), verdict="care"))
        for text in ("text", MARKUP)
    )
    page = page_of(nasty, tmp_path)
    assert Tags(page).found == Tags(page_of(harmless, tmp_path)).found
    assert "alert(1)" in page
    assert "<script>" not in page
    assert "<img src=x" not in page
    # It is there to be read, in every section that shows a text of somebody's.
    for name in (
        "verdict",
        "returns",
        "limits",
        "distribution",
        "stress",
        "portraits",
        "support",
        "bandwidths",
        "data",
        "learning",
        "notes",
    ):
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in section(page, name), name


@pytest.mark.usefixtures("without_pictures")
def test_programs_read_what_was_escaped(full, tmp_path):
    nasty = replace(full, summary=replace(full.summary, reasons=(MARKUP,), verdict="care", policy_files=("0" * 64,)))
    page = page_of(nasty, tmp_path)
    (inside,) = re.findall(r'<script type="application/json" id="nopg-report">(.*?)</script>', page, flags=re.DOTALL)
    assert ReportSummary.from_json(inside) == nasty.summary
    assert json.loads(inside) == json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    # A rig that was given the page alone.
    (tmp_path / "report.json").unlink()
    (found,) = reports_beside(tmp_path / "policy.onnx", "0" * 64)
    assert (found.problem, found.verdict, found.reasons) == (None, "care", (MARKUP,))


class NamedEnv(gym.Env):
    """Whose author calls the dimensions what he likes."""

    metadata = {"observation_names": [MARKUP], "observation_units": [MARKUP], "action_names": [MARKUP]}  # noqa: RUF012
    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,))
    action_space = gym.spaces.Box(-1.0, 1.0, (1,))


def test_an_environments_names_are_only_names(tmp_path):
    model = NOPGD("LinearPolicy", NamedEnv(), dataset=line_data(), gamma=0.9, seed=0, device="cpu", transitions="samples")
    report = quick_report(model, limits=["s[0] < 0.5"])
    assert MARKUP in report.labels[0]
    # With pictures, which have the names on their axes.
    page = page_of(report, tmp_path)
    assert "<script>" not in page
    assert "&lt;script&gt;" in section(page, "bandwidths")
    assert "s[0] &lt; 0.5" in section(page, "limits")


@pytest.mark.usefixtures("without_pictures")
def test_a_browser_runs_and_fetches_nothing_and_shows_the_verdicts_color(full, tmp_path):
    page = page_of(full, tmp_path)
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    # Nothing of the template is left, and no values that are not there.
    assert not re.search(r"{{|{%|{#|Undefined|\bNone\b", page)
    assert page.startswith("<!DOCTYPE html>")
    assert f'<div class="verdict {full.summary.verdict}"><b>{full.summary.verdict.upper()}</b>' in section(page, "verdict")
    for verdict in MEANINGS:
        assert re.search(rf"\.{verdict} {{ background: #\w{{6}}; }}", page), verdict


@pytest.mark.usefixtures("without_pictures")
def test_a_narrow_window_cuts_nothing_off(full, tmp_path):
    long = "abs(position_of_the_cart)<0.35and" * 20
    parts = {name: with_text(getattr(full.summary, name), long) for name in ("limits", "bandwidths", "candidates", "notes")}
    page_of(replace(full, summary=replace(full.summary, **parts, reasons=(long,))), tmp_path)
    browser = make_browser()
    try:
        # Windows are at least 500 pixels wide.
        size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get((tmp_path / "report.html").as_uri())
        width = browser.execute_script("return [innerWidth, document.documentElement.scrollWidth]")
    finally:
        browser.quit()
    assert width == [400, 400]
