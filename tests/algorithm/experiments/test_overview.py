"""One figure of all experiments: who solves what, from how much data, in what time."""

import gzip
import json

import matplotlib.image
import numpy as np
import pytest

from sb3_nopg import InputError
from sb3_nopg.experiments.cartpole_random import COMPARISON as CART_POLE
from sb3_nopg.experiments.extent import Extent
from sb3_nopg.experiments.overview import cells_of, write_overview
from sb3_nopg.experiments.pendulum_random import COMPARISON as PENDULUM
from sb3_nopg.experiments.report import read_markdown_tables


def trials(returns, seconds=2.0, **more):
    return [
        ({"method": method, "samples": n, "seed": seed, **more}, {"return": value, "learning_seconds": seconds * (1 + seed)})
        for (method, n), values in returns.items()
        for seed, value in enumerate(values)
    ]


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


def test_a_share_needs_what_it_is_a_share_of():
    """Without it, 0.99 would be a bar of 0.99 steps, which everybody passes."""
    with pytest.raises(InputError, match="evaluation_steps: a trial of KBRL does not have it"):
        cells_of(CART_POLE, trials({("KBRL", 100): [7.0]}, system="data sheet"))


def test_reports_of_a_folder_become_one_table_and_one_figure(tmp_path):
    def content(results):
        return json.dumps({"conditions": {}, "trials": [{"trial": t, "result": r} for t, r in results]})

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
