"""The one display: phases in their order, a line for each where nobody watches, and nothing where nothing is shown."""

import io
import sys

import numpy as np
import pytest

from sb3_nopg import NOPG, TransitionDataset
from sb3_nopg.common.progress import phase, shown


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
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == ["nodes", "fit", "candidates", "judge"]
