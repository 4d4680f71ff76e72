"""The one display: phases in their order, a line for each where nobody watches, and nothing where nothing is shown."""

import io
import sys
from contextlib import contextmanager

import numpy as np
import pytest

from helpers.reports import line_data
from sb3_nopg import NOPG, TransitionDataset
from sb3_nopg.common import progress
from sb3_nopg.common.progress import phase, shown
from sb3_nopg.prediction.judge import judge
from sb3_nopg.report.making import make_report


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_nothing_is_said_where_nothing_is_shown(capsys):
    with phase("fit", 3) as advance:
        advance()
    with shown(False), phase("fit"):
        pass
    assert capsys.readouterr() == ("", "")


def test_a_line_for_each_phase_and_once_for_what_repeats_within_another(capsys):
    with shown(), phase("judge"):
        for _ in range(3):
            with shown(), phase("nodes"):
                pass
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(":")[0] for line in err.splitlines()] == ["nodes", "judge"]


def test_a_phase_that_fails_is_not_said_to_be_done(capsys):
    with pytest.raises(ValueError, match="broken"), shown(), phase("fit"):
        raise ValueError("broken")
    assert capsys.readouterr().err == ""
    with shown(), phase("fit"):
        pass
    assert capsys.readouterr().err.startswith("fit: ")


def test_a_terminal_has_a_bar_with_the_time_that_is_left(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with shown(), phase("candidates", 4) as advance:
        for _ in range(2):
            advance()
    text = terminal.getvalue()
    assert "candidates" in text
    assert "left" in text


@pytest.mark.slow
def test_learning_names_its_phases(capsys):
    rng = np.random.default_rng(0)
    states, actions = rng.uniform(-1, 1, (60, 1)), rng.uniform(-1, 1, (60, 1))
    data = TransitionDataset(states, actions, -(states[:, 0] ** 2), states + 0.1 * actions, np.zeros(60, bool))
    model = NOPG("MlpPolicy", None, dataset=data, gamma=0.9, initial_states=[[0.8]], model_kwargs={"n_nodes": 40}, seed=0)
    model.learn(2, progress_bar=True)
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == ["fit", "nodes", "candidates", "judge"]


@pytest.fixture
def phases(monkeypatch):
    """Phases that were shown, with the steps that each was to have and how many of them it had made at the end."""
    found = {}

    class Watched(progress.Display):
        @contextmanager
        def _shown(self, name, total):
            counted = 0

            def advance(n_done=None):
                nonlocal counted
                counted = counted + 1 if n_done is None else n_done

            yield advance
            found[name] = total, counted

    monkeypatch.setattr(progress, "Display", Watched)
    return found


@pytest.mark.slow
def test_all_that_takes_long_knows_how_long_it_takes(phases):
    """The time that is left follows from the steps: who names none, or makes others, shows none."""
    data = line_data(8)
    model = NOPG("MlpPolicy", None, dataset=data, gamma=0.9, model_kwargs={"n_nodes": 40}, seed=0, device="cpu")
    model.learn(8, progress_bar=True)
    assert {"fit", "nodes", "candidates", "judge"} <= set(phases)
    with shown():
        make_report(model)
    assert {"report", "models of halves"} <= set(phases)
    with shown():
        make_report(model, trajectories=False)
        judge(data, {"ours": model}, gamma=0.9)
    assert "resamples" in phases
    for name, (total, counted) in phases.items():
        assert total is not None, name
        # What is over early needs no further steps; choices that were looked up none at all.
        assert 0 < counted <= total if name == "judge" else counted in (total, 0 if name == "fit" else total), name
