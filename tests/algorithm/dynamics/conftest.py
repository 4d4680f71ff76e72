"""Tests of the model of the system."""

import pytest

from sb3_nopg.dynamics.choices import choose


@pytest.fixture
def chosen_anew(chosen_once, monkeypatch):
    """For tests that change how a model is chosen, or ask whether it is chosen alike twice: it is chosen every time."""
    monkeypatch.setattr("sb3_nopg.dynamics.model.choose", choose)
