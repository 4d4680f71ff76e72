"""Simulated rigs in a report: what the figures say, what is drawn, and what a file keeps of them."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from helpers.reports import line_data, pictures, quick_report, section
from helpers.verdict_figures import STRESS
from nopg_envs.stress import Factor, Outcome, StressTest
from nopg_robot.commands.preflight import reports_beside
from sb3_nopg import NOPGD
from sb3_nopg.report.page import write_report
from sb3_nopg.report.stress import StressFigures, StressPicture
from sb3_nopg.report.stress_drawing import draw_stress, size_of_stress
from sb3_nopg.report.summary import ReportSummary


def flown(task: str = "balance") -> StressTest:
    """Ten rigs: high gains fall, one leaves the rail, one gets no number."""
    fall = "angle" if task == "balance" else "down"
    fates = ["held"] * 5 + [fall] * 3 + ["rail", "action"]
    gain, noise = np.linspace(1.0, 2.0, 10), np.linspace(0.0, 1.0, 10)[::-1]
    return StressTest(
        task=task,
        start="operator",
        seconds=20.0,
        control_hz=50.0,
        voltage_limit_volt=6.0,
        seed=0,
        outcomes=tuple(Outcome(fate, 20.0 if fate == "held" else 3.0) for fate in fates),
        factors=(
            Factor("gain", "m", 1.0, 2.0, (1.0, 0.5, 0.0), 0.01),
            Factor("noise", "counts", 0.0, 1.0, (0.2, 0.5, 0.6), 0.4),
        ),
        values={"gain": gain, "noise": noise},
    )


def test_the_figures_are_the_tests():
    figures = StressFigures.of(flown())
    assert (figures.n_rigs, figures.n_held, figures.share) == (10, 5, 0.5)
    assert (figures.fallen, figures.off_rail, figures.no_number) == (3, 1, 1)
    assert (figures.low, figures.high) == flown().interval
    assert [(factor.name, factor.clear) for factor in figures.factors] == [("gain", True), ("noise", False)]


def test_what_it_says():
    figures = StressFigures.of(flown())
    assert figures.share_text() == "5 of 10 held for 20 s, 50 % (95 % interval 23.7 to 76.3 %)"
    assert figures.fate_text() == "3 let the pole fall, 1 left the rail, 1 got no number from the policy"
    assert figures.what_hurts() == "gain where it is high (0 % held there, 100 % where it is low)"
    assert figures.text() == f"{figures.share_text()}: {figures.fate_text()}; what hurts: {figures.what_hurts()}"
    standing = StressFigures.of(flown("swing_up"))
    assert standing.share_text().startswith("5 of 10 stood upright in the end, after 20 s")
    assert standing.fate_text().startswith("3 did not, 1 left the rail")


def test_where_nothing_hurts_it_says_so():
    fine = replace(STRESS, n_held=200, fallen=0, factors=(replace(STRESS.factors[1], shares=(1.0, 1.0, 1.0)),))
    assert fine.fate_text() == ""
    assert fine.what_hurts() == "none"
    assert fine.text() == "200 of 200 held for 20 s, 100 % (95 % interval 95 to 99 %); what hurts: none"


def test_every_rig_is_drawn_where_it_belongs():
    picture = StressPicture.of(flown())
    np.testing.assert_allclose(picture.places[0], np.linspace(0.0, 1.0, 10))
    np.testing.assert_allclose(picture.places[1], np.linspace(1.0, 0.0, 10))
    figure = Figure(figsize=size_of_stress(picture))
    draw_stress(figure, picture)
    (axes,) = figure.axes
    drawn = [collection for collection in axes.collections if len(collection.get_offsets()) > 1]
    held, failed = (np.concatenate([c.get_offsets() for c in drawn[first::2]]) for first in (0, 1))
    assert sorted(held[:5, 0]) == pytest.approx(np.linspace(0.0, 1.0, 10)[:5])
    assert (len(held), len(failed)) == (10, 10)
    assert tuple(drawn[1].get_facecolor()[0][:3]) == to_rgb("#b3261e")
    labels = [text.get_text().splitlines()[0] for text in axes.get_yticklabels()]
    assert labels == ["gain", "noise"]
    assert [text.get_fontweight() for text in axes.get_yticklabels()] == ["bold", "normal"]
    assert [text.get_text() for text in axes.texts] == ["100 %", "50 %", "0 %", "20 %", "50 %", "60 %"]


@pytest.fixture(scope="module")
def model() -> NOPGD:
    return NOPGD("LinearPolicy", None, dataset=line_data(), gamma=0.9, seed=0, device="cpu", transitions="samples")


@pytest.mark.slow
def test_a_report_shows_it_and_asks_for_care(model, tmp_path):
    report = quick_report(model, stress=flown())
    assert report.summary.verdict == "care"
    assert any("5 of 10 held for 20 s" in reason for reason in report.summary.reasons)
    page = write_report(report, tmp_path / "report.html").read_text(encoding="utf-8")
    shown = section(page, "stress")
    assert "5 of 10 held for 20 s" in shown
    assert "What hurts: gain where it is high" in shown
    assert len(pictures(shown)) == 1
    assert "simulated rigs that might be yours" in section(page, "returns")
    # A program that reads verdicts only is not confused.
    policy = model.export(tmp_path / "policy.onnx")
    (found,) = reports_beside(policy, hashlib.sha256(policy.read_bytes()).hexdigest())
    assert (found.problem, found.verdict) == (None, "care")
    assert any("5 of 10 held" in reason for reason in found.reasons)


@pytest.mark.slow
@pytest.mark.usefixtures("without_pictures")
def test_without_rigs_a_report_is_as_before_and_older_files_are_read(model, tmp_path):
    report = quick_report(model)
    assert report.summary.stress is None
    page = write_report(report, tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'id="stress"' not in page
    assert "simulated rigs" not in page
    stressed = quick_report(model, stress=flown()).summary
    assert ReportSummary.from_json(stressed.to_json()) == stressed
    older = json.loads(stressed.to_json())
    del older["stress"]
    assert ReportSummary.from_json(json.dumps(older)) == replace(stressed, stress=None)
