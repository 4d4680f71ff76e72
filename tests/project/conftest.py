"""Training that is shown to a reader, short."""

import pytest

from sb3_nopg import NOPG


@pytest.fixture
def few_updates(monkeypatch):
    """Whether a block runs does not depend on how long it learns; how well it learns is tested elsewhere."""
    learn = NOPG.learn

    def learn_a_little(model, total_timesteps=500, *arguments, **options):
        return learn(model, min(total_timesteps, 3), *arguments, **options)

    monkeypatch.setattr(NOPG, "learn", learn_a_little)
