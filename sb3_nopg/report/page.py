"""A report on a policy as a page that needs no other file, or as one picture; its figures go beside it."""

import base64
import html
import os
import pathlib
from collections.abc import Iterable, Sequence

from sb3_nopg.common.errors import InputError
from sb3_nopg.data.files.files import replacing
from sb3_nopg.report.drawing import panels, picture, poster
from sb3_nopg.report.limits import LimitFinding
from sb3_nopg.report.making import REPORT_SUFFIXES, PolicyReport
from sb3_nopg.report.summary import ReportSummary, summary_path
from sb3_nopg.report.verdict import MEANINGS

_TITLE = "What this policy is predicted to do"
_CAUTION = (
    "A prediction from the data, made before anything moved, and not a measurement. Where less than one sample stands behind "
    "it, it is a guess."
)
_COLORS = {"go": "#1b7f3b", "care": "#b26a00", "no": "#b3261e"}
_STYLE = """
body { font-family: sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em; color: #2d323c; line-height: 1.4; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { text-align: left; padding: 0.3em 1em 0.3em 0; vertical-align: top; border-bottom: 1px solid #cdd0d5; }
th { font-weight: normal; color: #6b717c; }
figure { margin: 1.5em 0; } img { max-width: 100%; } figcaption { color: #6b717c; }
.verdict { color: white; padding: 0.8em 1.2em; border-radius: 0.4em; } .verdict b { font-size: 1.8em; }
"""
_SOURCES = (
    "return, values, where it goes and trajectories: from a model of the system; interval, support, limits, bandwidths and "
    "bounds: from the samples' kernels"
)
# Where a program finds the figures in the page.
_FIGURES = '<script type="application/json" id="nopg-report">'


def write_report(report: PolicyReport, path: str | os.PathLike[str]) -> pathlib.Path:
    """
    :param report: of a policy
    :param path: ``.html`` or ``.png``; the figures go beside it as JSON, see
        :func:`sb3_nopg.report.summary.summary_path`
    :return: the path
    """
    target = pathlib.Path(path)
    if target.suffix.lower() not in REPORT_SUFFIXES:
        raise InputError("path", f"{target} does not end in {' or '.join(REPORT_SUFFIXES)}", "The ending chooses the format")
    content = _page(report).encode() if target.suffix.lower() == ".html" else poster(report, _heading(report.summary))
    figures = summary_path(target)
    with replacing(target) as partial, replacing(figures) as partial_figures:
        partial.write_bytes(content)
        partial_figures.write_text(report.summary.to_json() + "\n", encoding="utf-8")
    return target


def facts(summary: ReportSummary) -> list[tuple[str, str]]:
    """
    :param summary: of a report
    :return: the first things to know, name and text
    """
    returns, support = summary.returns, summary.support
    lines = [("predicted return", f"{returns.plain:.5g}, discounted by {summary.gamma:g} a step")]
    if not returns.learned_from:
        lines.insert(0, ("judged by", "other data than the model learned from"))
    if returns.held_out is not None:
        chose = ", also used to choose the parameters" if returns.held_out_chose else ""
        lines.append(("predicted by held-out data", f"{returns.held_out:.5g} ({returns.held_out_source}{chose})"))
    if returns.interval_low is not None and returns.interval_high is not None:
        by = "the samples' kernels on " if summary.transitions == "model" else ""
        text = f"{returns.interval_low:.5g} to {returns.interval_high:.5g}, by {by}{returns.interval_source}"
        lines.append((f"{100 * returns.interval_level:.0f} % interval", text))
    if returns.behaviour is not None:
        lines.append(("recorded episodes returned", f"{returns.behaviour:.5g} on average, as far as they go"))
    lines += [
        (
            "samples behind the prediction",
            f"median {support.median_samples:.3g}, lowest tenth {support.lowest_tenth_samples:.3g}; less than one for "
            f"{100 * support.thin_share:.0f} % of the time",
        ),
        (
            "effective sample size",
            f"{support.effective_samples:.4g} transitions, {100 * support.effective_share:.3g} % of the data",
        ),
    ]
    followed = summary.trajectories
    if followed is not None:
        text = (
            f"{100 * followed.lasting:.0f} % of {followed.n_trajectories} last {followed.n_steps:,} steps; they earn "
            f"{followed.score:.5g} each, not discounted"
        )
        lines.append(("predicted trajectories", text))
    if summary.transitions == "model":
        lines.append(("these figures come from", _SOURCES))
    return lines


def limit_text(limit: LimitFinding) -> str:
    """
    :param limit: with what was found
    """
    checked = "" if limit.held_out_probability is None else f" (held-out data: {100 * limit.held_out_probability:.3g} %)"
    return f"{limit.formula}: left with probability {100 * limit.probability:.3g} %{checked}"


def _heading(summary: ReportSummary) -> str:
    lines = [f"{_TITLE}: {summary.verdict.upper()}", *summary.reasons, *(f"{name}: {text}" for name, text in facts(summary))]
    return "\n".join(lines)


def _page(report: PolicyReport) -> str:
    summary = report.summary
    pictures: dict[str, list[str]] = {}
    for panel in panels(report):
        image = base64.b64encode(picture(panel)).decode()
        pictures.setdefault(panel.section, []).append(
            f'<figure><h3>{_safe(panel.title)}</h3><img alt="{_safe(panel.title)}" src="data:image/png;base64,{image}">'
            f"<figcaption>{_safe(panel.explanation)}</figcaption></figure>\n"
        )
    sections = "".join(
        f'<section id="{name}"><h2>{_safe(title)}</h2>\n{text}{"".join(pictures.get(name, []))}</section>\n'
        for name, title, text in _sections(summary, report.labels)
    )
    # In a script nothing is read as markup but the end of it.
    figures = summary.to_json().replace("<", "\\u003c")
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{_TITLE}</title><style>{_STYLE}</style></head>\n'
        f"<body><h1>{_TITLE}</h1>\n<p>{_CAUTION}</p>\n{_verdict(summary)}{sections}{_FIGURES}{figures}</script>\n"
        f"</body></html>\n"
    )


def _verdict(summary: ReportSummary) -> str:
    color = _COLORS[summary.verdict]
    reasons = _list(summary.reasons)
    return (
        f'<section id="verdict"><div class="verdict" style="background: {color}"><b>{summary.verdict.upper()}</b><br>'
        f"{_safe(MEANINGS[summary.verdict])}</div>\n{reasons}</section>\n"
    )


def _sections(summary: ReportSummary, labels: Sequence[str]) -> Iterable[tuple[str, str, str]]:
    """Name, title and text of each, in order."""
    yield "returns", "What it is predicted to earn", _table(facts(summary))
    yield "limits", "Limits", _limits(summary)
    yield "distribution", "Where it is predicted to go", _ranges(summary)
    slices = (
        "<p>Slices through the state where the policy mostly is, over the dimensions that change value and policy most.</p>"
    )
    yield "portraits", "What it expects and what it does", slices
    yield "support", "Where it leaves the data", _worst(summary, labels)
    yield "bandwidths", "Bandwidths", _bandwidths(summary)
    yield "bounds", "Bounds on the systematic error", _bounds(summary)
    yield "data", "Data", _data(summary)
    yield "learning", "How it was learned", _learning(summary)
    yield "notes", "Worth knowing", _list(summary.notes) or "<p>Nothing else.</p>\n"


def _limits(summary: ReportSummary) -> str:
    if not summary.limits:
        return '<p>No limits were given. <code>--limit "abs(x) &lt; 0.35"</code> asks how likely the policy leaves one.</p>\n'
    return _table((limit_text(limit), limit.text()) for limit in summary.limits)


def _ranges(summary: ReportSummary) -> str:
    followed = summary.trajectories
    if followed is None:
        text = "<p>Nothing was predicted step by step.</p>\n"
    else:
        text = f"<p>{_safe(followed.text())} {_safe(followed.model_text())}</p>\n"
    rows = [
        (span.name, f"{span.policy_low:.3g} to {span.policy_high:.3g}", f"{span.data_low:.3g} to {span.data_high:.3g}")
        for span in summary.state_ranges
    ]
    return text + _table(rows, ("98 % of the time", "policy", "data"))


def _worst(summary: ReportSummary, labels: Sequence[str]) -> str:
    support = summary.support
    text = f"<p>For {100 * support.thin_share:.3g} % of its time, less than one sample stands behind the estimates.</p>\n"
    if not support.worst_states:
        return text + "<p>There is no place where it leaves the data.</p>\n"
    rows = [
        (f"{100 * worst.share:.2g} %", f"{worst.samples:.2g}", *(f"{x:.3g}" for x in worst.state))
        for worst in support.worst_states
    ]
    return f"{text}<p>The states without support where it spends most time:</p>\n" + _table(rows, ("time", "samples", *labels))


def _bandwidths(summary: ReportSummary) -> str:
    rows = []
    for entry in summary.bandwidths:
        unit = "" if entry.unit in ("", "1") else f" {entry.unit}"
        relative = "the data are constant" if entry.in_deviations is None else f"{entry.in_deviations:.3g} standard deviations"
        rows.append((entry.kernel, entry.name, f"{entry.width:.4g}{unit}", relative))
    return _table(rows, ("kernel", "dimension", "how far a sample's word counts", "of the data"))


def _bounds(summary: ReportSummary) -> str:
    bounds = summary.bounds
    rows = [
        ("reward, theorem 2", "beyond any number" if bounds.reward_bound is None else f"{bounds.reward_bound:.4g}"),
        ("value, theorem 3", "beyond any number" if bounds.value_bound is None else f"{bounds.value_bound:.4g}"),
        ("all that values could differ by", f"{bounds.value_range:.4g}"),
        ("steepest reward, a bandwidth", f"{bounds.lipschitz_reward:.4g}"),
        ("steepest value, a bandwidth", f"{bounds.lipschitz_value:.4g}"),
        ("steepest next state, bandwidths a bandwidth", f"{bounds.lipschitz_transition:.4g}"),
        ("steepest log density, a bandwidth", f"{bounds.lipschitz_log_density:.4g}"),
    ]
    caution = "The steepest slopes are the largest seen in the data, so that the bounds are estimates themselves."
    return f"<p>{_safe(bounds.text())} {caution}</p>\n{_table(rows)}"


def _data(summary: ReportSummary) -> str:
    data = summary.data
    rows = [
        ("what the model learned from", "these data" if summary.returns.learned_from else "other data, not these"),
        ("transitions", f"{data.transitions:,}"),
        ("episodes", "not recorded" if data.episodes is None else f"{data.episodes:,}"),
        ("ends of the task", f"{data.ends:,}"),
        ("held out beside these", "none" if data.held_out is None else f"{data.held_out:,}"),
        ("fingerprint", data.fingerprint),
    ]
    return _table(rows)


def _learning(summary: ReportSummary) -> str:
    rows = [
        ("algorithm", f"{summary.algorithm}, {summary.n_updates} updates"),
        ("digest of the policy", summary.policy_digest),
    ]
    return _table(rows) + _candidates(summary) + _list(summary.system)


def _candidates(summary: ReportSummary) -> str:
    if not summary.candidates:
        return ""
    rows = [
        (
            f"from {one.recipe.replace('_', ' ')}",
            f"{one.trained_on} of the episodes",
            str(one.n_updates),
            f"{one.score:.5g}",
            f"{100 * one.lasting:.0f} %",
        )
        for one in summary.candidates
    ]
    told = f"Training has tried several candidates; the first one was chosen. {summary.margin}"
    return f"<p>{_safe(told)}</p>\n" + _table(rows, ("candidate", "trained on", "updates", "score", "trajectories that last"))


def _table(rows: Iterable[Sequence[str]], header: Sequence[str] = ()) -> str:
    head = "<tr>" + "".join(f"<th>{_safe(cell)}</th>" for cell in header) + "</tr>\n" if header else ""
    body = "".join(
        f"<tr><th>{_safe(row[0])}</th>" + "".join(f"<td>{_safe(cell)}</td>" for cell in row[1:]) + "</tr>\n" for row in rows
    )
    return f"<table>{head}{body}</table>\n"


def _list(items: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{_safe(item)}</li>" for item in items) + "</ul>\n" if items else ""


def _safe(text: str) -> str:
    return html.escape(text)
