"""What must be set before anything else is imported."""

import os

# Before NumPy is imported, and for all programs that tests start: threads that wait for a core which another test has taken
# make tests that run side by side several times as slow.
os.environ["OMP_NUM_THREADS"] = "1"

import importlib

import pytest

# Helpers show values where they fail, as tests do.
pytest.register_assert_rewrite("helpers")

# How large things are where a test does not say so itself. Most tests ask whether parts fit together, not how well a policy
# does in the end; those have ``whole_sizes``.
SMALL = (
    ("training.imitation", "_N_STEPS", 15),
    ("training.course", "_N_TRAJECTORIES", 16),
    ("training.course", "_N_IN_MANY_DIMENSIONS", 32),
    ("training.course", "_N_COMPARED", 16),
    ("training.teaching", "_N_TAUGHT", 300),
    ("dynamics.compiling", "_N_NODES", {1: 100, 2: 300, 3: 500}),
    ("dynamics.compiling", "_N_NODES_OTHERWISE", 1000),
    ("dynamics.compiling", "_N_NODES_AROUND", 1500),
    ("dynamics.nodes", "_LEAST_WALKERS", 200),
    ("dynamics.cross_validation", "_MOST_JUDGED", 100),
    ("dynamics.several_steps", "_MOST_PLACES", 150),
    ("dynamics.several_steps", "_MOST_PLACES_IF_LOCAL", 60),
    ("prediction.model_estimator", "_MOST_STEPS", 20),
    ("prediction.model_estimator", "_LONGEST", 60),
    ("prediction.model_evaluation", "_LEAST_TRAJECTORIES", 16),
    ("prediction.judge", "N_NODES", 400),
    ("prediction.judge", "_MOST_STEPS", 50),
    ("report.bounds", "_N_POINTS", 300),
    ("experiments.baselines.cloning", "_N_UPDATES", 100),
    ("report.returns", "_N_RESAMPLES", 8),
    ("report.portraits", "_N_SLICE_CELLS_FOLLOWED", 12),
)


# A simulated chip keeps a core busy, as fast as the real one is: two of them at once would be late.
BOARDS = "tests/robot/firmware/"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Files are handed out one by one, but those that run simulated chips all to the same process."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class BoardsOneAfterTheOther(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return BOARDS if nodeid.startswith(BOARDS) else super()._split_scope(nodeid)

    return BoardsOneAfterTheOther(config, log)


def module_of(name):
    return importlib.import_module(f"sb3_nopg.{name}")


@pytest.fixture(scope="session", autouse=True)
def small_sizes():
    """
    Models of the system, trajectories of an update, lessons of a candidate and a report's intervals, all quick to make.

    What they have in a program is handed on. All is imported here and not above, for pytest reads this file once more in the
    process that only hands tests out to others, and these wait for it.
    """
    import torch as th

    th.set_num_threads(1)
    whole = [(module_of(module), name, getattr(module_of(module), name)) for module, name, _ in SMALL]
    with pytest.MonkeyPatch.context() as patch:
        for module, name, size in SMALL:
            patch.setattr(module_of(module), name, size)
        yield whole


# By the data, what was wanted of them, and the sizes.
CHOSEN = {}


@pytest.fixture(autouse=True)
def chosen_once(monkeypatch, small_sizes):
    """
    What a model of the system is made of follows from the data, and most tests have the same few: it is chosen once for each.
    Tests that change how it is chosen have ``chosen_anew``, in ``algorithm/dynamics``.
    """
    import joblib

    model = module_of("dynamics.model")
    choose = model.choose

    def look_up(data, *wanted, **_):
        sizes = [getattr(module_of(module), name) for module, name, _ in SMALL]
        recorded = (data.dataset, data.labels, data.rewards.numpy(), repr(data.coordinates))
        key = joblib.hash((recorded, wanted, sizes))
        if key not in CHOSEN:
            CHOSEN[key] = choose(data, *wanted)
        return CHOSEN[key]

    monkeypatch.setattr(model, "choose", look_up)


@pytest.fixture(autouse=True)
def own_style():
    """Programs of others that a test runs may set another style of pictures, for all that follow."""
    import matplotlib

    with matplotlib.rc_context():
        yield


@pytest.fixture
def whole_sizes(monkeypatch, small_sizes):
    """For tests of how well a policy does in the end."""
    for module, name, size in small_sizes:
        monkeypatch.setattr(module, name, size)


@pytest.fixture
def without_pictures(monkeypatch):
    """Drawing takes most of the time of a report; for tests of what its text says."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    def blank(figure, file, **settings):
        FigureCanvasAgg(Figure(figsize=(0.1, 0.1))).print_png(file)

    monkeypatch.setattr(Figure, "savefig", blank)
