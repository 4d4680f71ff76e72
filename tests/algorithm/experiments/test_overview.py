"""One figure of all experiments: who solves what, from how much data, in what time."""

import gzip
import json

import matplotlib.image
import numpy as np
import pytest

from sb3_nopg import InputError
from sb3_nopg.experiments.cartpole_random import COMPARISON as CART_POLE
from sb3_nopg.experiments.extent import Extent
from sb3_nopg.experiments.overview import cells_of, figure_label, write_overview
from sb3_nopg.experiments.pendulum_random import COMPARISON as PENDULUM
from sb3_nopg.experiments.report import read_markdown_tables


def trials(returns, seconds=2.0, **more):
    return [
        ({"method": method, "samples": n, "seed": seed, **more}, {"return": value, "learning_seconds": seconds * (1 + seed)})
        for (method, n), values in returns.items()
        for seed, value in enumerate(values)
    ]


def content(results):
    told = {"seconds": 1.0, "code": "abc", "versions": 0}
    return json.dumps({"conditions": {"versions": [{}]}, "trials": [{"trial": t, "result": r, **told} for t, r in results]})


RETURNS = {("NOPG-D, defaults", 100): [-900.0, -1100.0, -400.0], ("NOPG-D, defaults", 500): [-400.0], ("KBRL", 100): [-3000.0]}


def test_the_share_that_passes_the_bar_and_the_median_time():
    cells = {(cell.column, cell.method): cell for cell in cells_of(PENDULUM, trials(RETURNS))}
    cell = cells["pendulum-random, 100", "NOPG-D, defaults"]
    assert (cell.solved, cell.n_seeds, cell.seconds) == (pytest.approx(2 / 3), 3, 4.0)
    assert cells["pendulum-random, 100", "KBRL"].solved == 0.0
    # What does not learn from data has no size to stand under.
    assert cells_of(PENDULUM, [({"method": "doing nothing", "seed": 0}, {"return": -4935.0})]) == []


def test_a_bar_may_be_a_share_of_the_evaluation():
    for steps, solved in ((1000, 1.0), (10_000, 0.0)):
        results = trials({("KBRL", 100): [999.0]}, system="data sheet", evaluation_steps=steps)
        (cell,) = cells_of(CART_POLE, results)
        assert (cell.column, cell.solved) == ("cartpole-random, data sheet, 100", solved)


REFUSED = {"return": -4935.0, "learning_seconds": 900.0, "refused": "too few data"}


@pytest.mark.slow
def test_a_refusal_is_no_time_to_learn(tmp_path):
    own = [({"method": "NOPG-D, defaults", "samples": n, "seed": 9}, REFUSED) for n in (100, 2000)]
    results = [*trials(RETURNS), *own]
    cells = {(cell.column, cell.method): cell for cell in cells_of(PENDULUM, results)}
    some = cells["pendulum-random, 100", "NOPG-D, defaults"]
    assert (some.solved, some.n_seeds, some.n_refused, some.seconds) == (0.5, 4, 1, 4.0)
    assert cells["pendulum-random, 2,000", "NOPG-D, defaults"].seconds is None
    assert figure_label(some) == "50\nof 4*"
    (tmp_path / "pendulum-random.json").write_text(content(results))
    text = write_overview(tmp_path, Extent())
    assert "| 50 % of 4, 1 refused, 4 s |" in text
    assert "| 0 % of 1, 1 refused |" in text
    assert "counts as doing nothing" in text
    assert "900.0" not in PENDULUM.tables(results)


@pytest.mark.slow
def test_those_who_try_several_policies_in_the_true_environment_are_judged_by_the_last(tmp_path):
    trial = {"method": "PWIS", "samples": 100, "seed": 0}
    results = [(trial, {"return": -500.0, "last": -4000.0, "learning_seconds": 1.0}), *trials(RETURNS)]
    cells = {cell.method: cell for cell in cells_of(PENDULUM, results[:1])}
    assert cells["PWIS"].solved == 0.0
    assert figure_label(cells["PWIS"]) == "0\nof 1"
    (tmp_path / "pendulum-random.json").write_text(content(results))
    assert "- PWIS: by the last evaluation" in write_overview(tmp_path, Extent())


@pytest.mark.parametrize("broken", ['{"trials": [{"trial": {"met', '{"conditions": {}}', "[]", '{"trials": [{"trial": 3}]}'])
@pytest.mark.parametrize("packed", [False, True])
def test_a_report_that_is_cut_off_is_named(broken, packed, tmp_path):
    name = "pendulum-grid-quick.json" + ".gz" * packed
    (tmp_path / name).write_bytes(gzip.compress(broken.encode()) if packed else broken.encode())
    with pytest.raises(InputError, match="not a whole report") as error:
        write_overview(tmp_path, Extent(quick=True))
    assert name in str(error.value)
    assert "`nopg reproduce pendulum-grid --quick`" in str(error.value)
    assert ("whole copy" in str(error.value)) == packed


def test_a_packed_report_that_is_cut_off_is_named(tmp_path):
    whole = gzip.compress(content(trials(RETURNS)).encode())
    for end in (5, len(whole) // 2, len(whole) - 3):
        (tmp_path / "pendulum-random.json.gz").write_bytes(whole[:end])
        with pytest.raises(InputError, match="not a whole report"):
            write_overview(tmp_path, Extent())


def test_a_share_needs_what_it_is_a_share_of():
    """Without it, 0.99 would be a bar of 0.99 steps, which everybody passes."""
    with pytest.raises(InputError, match="evaluation_steps: a trial of KBRL does not have it"):
        cells_of(CART_POLE, trials({("KBRL", 100): [7.0]}, system="data sheet"))


@pytest.mark.slow
def test_reports_of_a_folder_become_one_table_and_one_figure(tmp_path):
    (tmp_path / "pendulum-random.json").write_text(content(trials(RETURNS)))
    balanced = trials({("KBRL", 100): [10_000.0], ("IQL", 100): [7.0]}, system="data sheet", evaluation_steps=10_000)
    (tmp_path / "cartpole-random.json.gz").write_bytes(gzip.compress(content(balanced).encode()))
    flights = [({"task": "swing_up", "method": "IQL", "seed": 0}, {"return": 0.25, "learning_seconds": 60.0})]
    (tmp_path / "real-recordings.json").write_text(content([*flights, ({"left_out": "a", "method": "b"}, {})]))
    text = write_overview(tmp_path, Extent())
    assert (tmp_path / "overview.md").read_text() == text
    (rows,) = read_markdown_tables(text)
    table = {row["data"]: row for row in rows}
    assert list(table) == [
        "pendulum-random, 100",
        "pendulum-random, 500",
        "cartpole-random, data sheet, 100",
        "real-recordings, swing up",
    ]
    assert table["pendulum-random, 100"]["NOPG-D, defaults"] == "67 % of 3, 4 s"
    assert table["pendulum-random, 500"]["KBRL"] == "–"
    assert table["cartpole-random, data sheet, 100"]["KBRL"] == "100 % of 1, 2 s"
    assert table["real-recordings, swing up"]["IQL"] == "25 % of 1, 60 s"
    assert "gets up and stays there" in text
    image = matplotlib.image.imread(tmp_path / "overview.png")[..., :3]
    # Two shades of green at least, and blue points of time.
    assert (np.ptp(image, axis=-1) > 0.3).sum() > 1000


def test_a_folder_without_reports_is_refused(tmp_path):
    with pytest.raises(InputError, match="no report of an experiment"):
        write_overview(tmp_path, Extent(quick=True))
