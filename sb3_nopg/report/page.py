"""A report on a policy as a page that needs no other file, or as one picture; its figures go beside it."""

import base64
import os
import pathlib

from jinja2 import Environment, PackageLoader, StrictUndefined

from sb3_nopg.common.errors import InputError
from sb3_nopg.common.files import replacing
from sb3_nopg.common.progress import phase
from sb3_nopg.report.drawing import panels, picture, poster
from sb3_nopg.report.limits import LimitFinding
from sb3_nopg.report.making import REPORT_SUFFIXES, PolicyReport
from sb3_nopg.report.summary import ReportSummary, summary_path
from sb3_nopg.report.verdict import HELD_OUT, MEANINGS, PLAIN

_TITLE = "What this policy is predicted to do"
_SOURCES = (
    "return, values, where it goes and trajectories: from a model of the system; support, limits, bandwidths and bounds: from "
    "the samples' kernels"
)
_TEMPLATES = Environment(
    loader=PackageLoader("sb3_nopg", "report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
# The figures in the page are those of the file beside it.
_TEMPLATES.policies["json.dumps_function"] = lambda summary, **_: summary.to_json()


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
    lines, followed = [], summary.trajectories
    if followed is not None:
        text = f"{followed.success_text()}; they earn {followed.score:.5g} each in {followed.n_steps:,} steps, not discounted"
        lines += [("predicted trajectories", text), ("the actuator moves by", followed.chatter_text())]
    sure = returns.interval_text(PLAIN)
    lines.append(("predicted return", f"{returns.plain:.5g}, discounted by {summary.gamma:g} a step{sure and f' ({sure})'}"))
    if not returns.learned_from:
        lines.insert(0, ("judged by", "other data than the model learned from"))
    unseen = summary.unseen_text()
    if unseen and returns.learned_from:
        lines.append(("on episodes not trained on", unseen))
    if returns.held_out is not None:
        chose = ", also used to choose the parameters" if returns.held_out_chose else ""
        sure = returns.interval_text(HELD_OUT)
        text = f"{returns.held_out:.5g} ({returns.held_out_source}{chose}{sure and f'; {sure}'})"
        lines.append(("predicted by held-out data", text))
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
    if summary.stress is not None:
        lines.append(("simulated rigs that might be yours", summary.stress.text()))
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
    summary, shown, pictures = report.summary, list(panels(report)), []
    with phase("pictures", len(shown)) as advance:
        for panel in shown:
            pictures.append((panel, base64.b64encode(picture(panel)).decode()))
            advance()
    return _TEMPLATES.get_template("page.html").render(
        title=_TITLE,
        meaning=MEANINGS[summary.verdict],
        summary=summary,
        facts=facts(summary),
        limits=[(limit_text(limit), limit.text()) for limit in summary.limits],
        labels=report.labels,
        pictures=pictures,
    )
