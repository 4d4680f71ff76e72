"""What is committed of full runs: reports that follow from their numbers, and documentation that follows from both."""

import gzip
import importlib.util
import json
import re

import numpy as np
import pytest

from helpers.repository import REPOSITORY
from sb3_nopg.experiments import EXPERIMENTS, load_experiment
from sb3_nopg.experiments.extent import Extent
from sb3_nopg.experiments.report import mean_interval, read_markdown_tables
from sb3_nopg.experiments.run_report import known_results

RESULTS = REPOSITORY / "benchmarks" / "results" / "reproduction"
FILES = sorted(RESULTS.glob("*.json.gz"))
# What a return must pass to be counted after a comma, where the documentation counts.
COUNTED = {
    "pendulum-grid": -1000.0,
    "pendulum-random": -1000.0,
    "mountain-car": -499.9,
    "cartpole-random": 9900.0,
    "cartpole-swing-up": 249.9,
}
# Rows of the documentation that several methods share.
METHODS_OF_A_ROW = {
    "NOPG-D and NOPG-S, the paper's settings": ["NOPG-D, paper", "NOPG-S, paper"],
    "kernel value iteration, greedy on nodes": ["KBRL", "greedy on nodes"],
}


def content(path):
    return json.loads(gzip.decompress(path.read_bytes()))


def test_every_experiment_has_a_full_run():
    assert {path.name.removesuffix(".json.gz") for path in FILES} == set(EXPERIMENTS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_a_run_can_go_on_from_what_is_committed(path):
    name = path.name.removesuffix(".json.gz")
    known = known_results(load_experiment(name), path.parent, any_code=True)
    assert [record.result for record in known.values()] == [entry["result"] for entry in content(path)["trials"]]


@pytest.mark.slow
@pytest.mark.usefixtures("without_pictures")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_a_committed_report_follows_from_its_numbers(path, tmp_path):
    name, numbers = path.name.removesuffix(".json.gz"), content(path)
    results = [(entry["trial"], entry["result"]) for entry in numbers["trials"]]
    n_missing = numbers["conditions"].get("trials missing", 0)
    again = load_experiment(name).summarize(results, tmp_path, Extent(False, n_missing, len(results) + n_missing))
    committed = (path.parent / f"{name}.md").read_text(encoding="utf-8")
    assert read_markdown_tables(again)
    assert read_markdown_tables(committed) == read_markdown_tables(again)
    assert f"`{numbers['conditions']['command']}`" in committed


def section(name):
    text = (REPOSITORY / "docs" / "reproduction.md").read_text(encoding="utf-8")
    return re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", text, re.M | re.S).group(1)


def method_of(row):
    """A row's name in the documentation, as the results have it."""
    for told, kept in (
        (", the paper's settings", ", paper"),
        (", our defaults", ", defaults"),
        (", the same, factor as printed", ", paper, factor as printed"),
        ("kernel value iteration", "KBRL"),
        (", best of 20 evaluations", ""),
    ):
        row = row.replace(told, kept)
    return re.sub(r", seeds \d+ to \d+$", "", row)


def labelled_seeds(row):
    """The seeds that a row's name promises, or None."""
    found = re.search(r", seeds (\d+) to (\d+)$", row)
    return None if found is None else list(range(int(found[1]), int(found[2]) + 1))


def renderings(returns, threshold):
    """All that a cell may say of the returns of all seeds."""
    mean, half = mean_interval(returns)
    shown = [f"{mean:,.0f}"] if not half or round(half) == 0 else []
    shown += [f"{mean:,.0f} ± {half:,.0f}"] if half is not None else []
    if threshold is not None:
        shown += [f"{cell}, {int(np.sum(np.array(returns) > threshold))}" for cell in shown]
    return [*shown, " ".join(f"{value:,.0f}" for value in returns)]


@pytest.mark.parametrize(
    ("name", "across", "n_cells"),
    [
        ("pendulum-grid", "samples", 48),
        ("pendulum-random", "samples", 60),
        ("cartpole-random", "samples", 78),
        ("cartpole-swing-up", "samples", 48),
        ("mountain-car", "demonstrations", 54),
    ],
)
def test_the_documentation_says_what_the_results_do(name, across, n_cells):
    """Row by row: of each method, with each amount of data."""
    returns, seeds = {}, {}
    for entry in content(RESULTS / f"{name}.json.gz")["trials"]:
        trial = entry["trial"]
        if "return" in entry["result"]:
            of_which = (trial.get("system", "method"), trial["method"], trial.get(across))
            returns.setdefault(of_which, []).append(entry["result"]["return"])
            seeds.setdefault(of_which, []).append(trial["seed"])
    checked = 0
    for row in [row for table in read_markdown_tables(section(name)) for row in table]:
        (system, method), *cells = row.items()
        for column, cell in cells:
            of_which = (system, method_of(method), int(column.replace(",", "")))
            known = returns.get(of_which)
            if known is None or not cell:
                continue
            assert labelled_seeds(method) in (None, seeds[of_which])
            assert cell.replace("−", "-") in renderings(known, COUNTED.get(name)), (system, method, column)
            checked += 1
    assert checked == n_cells


def test_the_documentation_says_what_the_recordings_gave():
    """Which share of the rigs each seed of each method holds, and how far the model's motion is off."""
    (motion, flights), checked = read_markdown_tables(section("real-recordings")), 0
    shares = {}
    for entry in content(RESULTS / "real-recordings.json.gz")["trials"]:
        if "task" in entry["trial"]:
            shares.setdefault((entry["trial"]["task"], entry["trial"]["method"]), []).append(entry["result"]["return"])
    for row in flights:
        for task in ("balance", "swing_up"):
            for method in METHODS_OF_A_ROW.get(row["method"], [method_of(row["method"])]):
                told = " ".join(f"{100 * share:g} %" for share in shares[task, method])
                assert row[task.replace("_", " ")] == told, (task, method)
                checked += 1
    assert checked == 22
    (of_all, *_) = read_markdown_tables((RESULTS / "real-recordings.md").read_text(encoding="utf-8"))
    errors = {row["method"]: [cell.split(" ")[0] for name, cell in row.items() if name != "method"] for row in of_all}
    for row in motion:
        told = [row[f"{name}, {seconds} s"].split(" ")[0] for seconds in ("0.1", "0.5", "1") for name in ("x", "θ")]
        assert told == errors[row["method"]], row["method"]


def test_the_documentation_says_how_policies_of_recordings_fly():
    """Shares of the rigs of our defaults, and what those of the paper's settings are predicted to do."""
    shares, predicted = {}, []
    for entry in content(RESULTS / "real-recordings.json.gz")["trials"]:
        trial, result = entry["trial"], entry["result"]
        if "task" in trial and trial["method"].endswith("defaults"):
            shares.setdefault(trial["task"], []).append(100 * result["return"])
        if trial.get("task") == "balance" and trial["method"].endswith("paper"):
            predicted.append(result["estimated_return"])
    (up, fly), text = (shares["balance"], shares["swing_up"]), " ".join(section("real-recordings").split())
    n_whole, some = up.count(100), [share for share in fly if share > 0]
    assert f"{n_whole} of {len(up)} policies of NOPG learn to hold the pole up on all 200 rigs" in text
    assert f"{len(some)} of {len(fly)} to swing it up on {min(some):g} to {max(some):g} % of them" in text
    # A reward of one a step, discounted by 0.99.
    assert "the paper's settings hold on no rig, and are predicted to balance for ever" in text
    assert {round(value) for value in predicted} == {100}


@pytest.mark.slow
@pytest.mark.usefixtures("without_pictures")
def test_the_choice_of_methods_follows_from_all_results(tmp_path):
    program = importlib.util.spec_from_file_location("which_method", REPOSITORY / "benchmarks" / "which_method.py")
    which_method = importlib.util.module_from_spec(program)
    program.loader.exec_module(which_method)
    which_method.write(tmp_path)
    committed = REPOSITORY / "benchmarks" / "results" / "which_method.md"
    assert (tmp_path / committed.name).read_text(encoding="utf-8") == committed.read_text(encoding="utf-8")
