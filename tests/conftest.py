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

from sb3_nopg.dynamics import compiling, cross_validation, several_steps
from sb3_nopg.prediction import judge, model_estimator, model_evaluation
from sb3_nopg.report import bounds, portraits, returns
from sb3_nopg.training import course, imitation, teaching

th.set_num_threads(1)
# Helpers show values where they fail, as tests do.
pytest.register_assert_rewrite("helpers")

# How large things are where a test does not say so itself. Most tests ask whether parts fit together, not how well a policy
# does in the end; those have ``whole_sizes``.
SMALL = (
    (imitation, "_N_STEPS", 15),
    (course, "_N_TRAJECTORIES", 16),
    (course, "_N_IN_MANY_DIMENSIONS", 32),
    (course, "_N_COMPARED", 16),
    (teaching, "_N_TAUGHT", 300),
    (compiling, "_N_NODES", {1: 100, 2: 300, 3: 500}),
    (compiling, "_N_NODES_OTHERWISE", 1000),
    (compiling, "_N_NODES_AROUND", 1500),
    (cross_validation, "_MOST_JUDGED", 150),
    (several_steps, "_MOST_PLACES", 150),
    (several_steps, "_MOST_PLACES_IF_LOCAL", 60),
    (model_estimator, "_MOST_STEPS", 20),
    (model_estimator, "_LONGEST", 60),
    (model_evaluation, "_LEAST_TRAJECTORIES", 16),
    (judge, "N_NODES", 400),
    (judge, "_MOST_STEPS", 50),
    (bounds, "_N_POINTS", 300),
    (returns, "_N_RESAMPLES", 20),
    (portraits, "_N_SLICE_CELLS_FOLLOWED", 12),
)
WHOLE = tuple((module, name, getattr(module, name)) for module, name, _ in SMALL)


@pytest.fixture(scope="session", autouse=True)
def small_sizes():
    """Models of the system, trajectories of an update, lessons of a candidate and a report's intervals, all quick to make."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name, size in SMALL:
            patch.setattr(module, name, size)
        yield


@pytest.fixture(autouse=True)
def own_style():
    """Programs of others that a test runs may set another style of pictures, for all that follow."""
    with matplotlib.rc_context():
        yield


@pytest.fixture
def whole_sizes(monkeypatch):
    """For tests of how well a policy does in the end."""
    for module, name, size in WHOLE:
        monkeypatch.setattr(module, name, size)


@pytest.fixture
def without_pictures(monkeypatch):
    """Drawing takes most of the time of a report; for tests of what its text says."""

    def blank(figure, file, **settings):
        FigureCanvasAgg(Figure(figsize=(0.1, 0.1))).print_png(file)

    monkeypatch.setattr(Figure, "savefig", blank)
