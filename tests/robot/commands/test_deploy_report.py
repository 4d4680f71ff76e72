"""``nopg-deploy`` shows the verdict of a report that lies beside the policy, and notices one that belongs to another."""

import hashlib
import json

import pytest
from typer.testing import CliRunner

from helpers.policy_files import write_policy
from helpers.rigs import quick_rig
from nopg_robot.commands import deploy
from nopg_robot.commands.preflight import reports_beside
from nopg_robot.flight.log import read_flight

DIGEST = "0" * 64


def figures(**changes):
    return json.dumps(
        {"format_version": 2, "verdict": "care", "reasons": ["Mind the rail."], "policy_files": [DIGEST], **changes}
    )


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def page(text):
    return f'<html><script type="application/json" id="nopg-report">{text}</script></html>'


@pytest.fixture
def policy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    return write_policy(tmp_path / "policy.onnx")


def said(policy, *more):
    rig = policy.with_name("rig.yaml")
    rig.write_text(quick_rig().to_yaml(), encoding="utf-8")
    options = ["--rig", str(rig), "--fast", "--seconds", "0.2", "--plain", "--no-plot", "--log", "f.npz"]
    result = CliRunner().invoke(deploy.app, [str(policy), *options, *more])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.slow
@pytest.mark.parametrize("verdict", ["go", "care", "no"])
def test_the_verdict_is_printed_before_the_run_and_forbids_nothing(policy, verdict):
    (policy.parent / "report.json").write_text(figures(verdict=verdict, policy_files=["1" * 64, sha256(policy)]))
    output = said(policy)
    assert f"verdict of report.json: {verdict}" in output
    assert "Mind the rail." in output
    assert output.index("verdict of") < output.index("FINISHED")


def test_a_no_is_red():
    for verdict, style in (("no", "bold red"), ("care", "yellow"), ("go", "green")):
        assert deploy.Preflight("x", None, verdict).style == style
    assert deploy.Preflight("x", "is no report").style == "yellow"


@pytest.mark.slow
def test_without_a_report_nothing_is_said(policy):
    assert "report" not in said(policy)


@pytest.mark.slow
def test_a_report_of_another_policy_is_noticed(policy):
    (policy.parent / "report.json").write_text(figures(policy_files=["1" * 64]))
    output = said(policy)
    assert "report.json belongs to another policy file" in output
    assert "verdict" not in output


@pytest.mark.slow
def test_what_a_policy_file_says_of_itself_is_not_believed(policy):
    """The metadata are those of the policy that the report is about, the numbers are others."""
    (policy.parent / "report.json").write_text(figures(verdict="go", policy_digest=DIGEST, policy_files=[sha256(policy)]))
    assert "verdict of report.json: go" in said(policy)
    write_policy(policy, bias=0.001, digest=DIGEST)
    output = said(policy, "--log", "again.npz")
    assert "verdict" not in output
    assert "report.json belongs to another policy file" in output
    assert read_flight("again.npz").header["policy"]["digest"] == sha256(policy)


def test_reports_are_found_by_digest_whatever_their_names(policy):
    folder = policy.parent
    (folder / "other.report.json").write_text(figures(policy_files=["1" * 64]))
    assert reports_beside(policy, DIGEST) == []
    (folder / "first.report.json").write_text(figures(verdict="no"))
    assert [(report.path.name, report.verdict) for report in reports_beside(policy, DIGEST)] == [("first.report.json", "no")]
    # Those of other policies are not worth a word beside one that fits.
    (folder / "report.json").write_text("not JSON")
    assert len(reports_beside(policy, DIGEST)) == 1


def test_a_page_alone_will_do(policy):
    (policy.parent / "report.html").write_text(page(figures(reasons=["x \\u003c 1"]).replace("\\\\u", "\\u")))
    (report,) = reports_beside(policy, DIGEST)
    assert (report.verdict, report.reasons) == ("care", ("x < 1",))
    # Its own figures say the same.
    (policy.parent / "report.json").write_text(figures())
    assert len(reports_beside(policy, DIGEST)) == 1


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("report.json", b"{", "cannot be read"),
        ("report.json", b"\xff\xfe", "cannot be read"),
        ("report.json", b"[" * 100_000, "cannot be read"),
        ("report.json", b"[]", "understands"),
        ("report.json", figures(format_version=99).encode(), "understands"),
        ("report.json", figures(verdict="perhaps").encode(), "no verdict"),
        ("report.json", figures(reasons="all of them").encode(), "no verdict"),
        ("policy.report.json", figures(policy_files=None).encode(), "another policy file"),
        ("report.html", b"<html></html>", "is no report"),
        ("report.html", page("{").encode(), "cannot be read"),
    ],
)
def test_damaged_reports_are_a_word_of_warning(policy, name, content, word):
    (policy.parent / name).write_bytes(content)
    (report,) = reports_beside(policy, DIGEST)
    assert word in report.lines()[0]
    assert report.verdict == ""


def test_other_pages_beside_a_policy_are_none_of_its_business(policy):
    (policy.parent / "index.html").write_text("<html></html>")
    assert reports_beside(policy, DIGEST) == []
