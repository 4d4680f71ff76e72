"""What must be set before anything else is imported."""

import os

# Before NumPy is imported, and for all programs that tests start: threads that wait for a core which another test has taken
# make tests that run side by side several times as slow.
os.environ["OMP_NUM_THREADS"] = "1"

import matplotlib
import pytest
import torch as th
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import sb3_nopg.training.imitation

th.set_num_threads(1)
# Helpers show values where they fail, as tests do.
pytest.register_assert_rewrite("helpers")

LESSON = sb3_nopg.training.imitation._N_STEPS


@pytest.fixture(scope="session", autouse=True)
def quick_lessons():
    """Most of the time of a short training on a model is spent on teaching candidates, which need not learn well here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sb3_nopg.training.imitation, "_N_STEPS", 40)
        yield


@pytest.fixture(autouse=True)
def own_style():
    """Programs of others that a test runs may set another style of pictures, for all that follow."""
    with matplotlib.rc_context():
        yield


@pytest.fixture
def whole_lessons(monkeypatch):
    """For tests of how well a policy does in the end."""
    monkeypatch.setattr(sb3_nopg.training.imitation, "_N_STEPS", LESSON)


@pytest.fixture
def without_pictures(monkeypatch):
    """Drawing takes most of the time of a report; for tests of what its text says."""

    def blank(figure, file, **settings):
        FigureCanvasAgg(Figure(figsize=(0.1, 0.1))).print_png(file)

    monkeypatch.setattr(Figure, "savefig", blank)
