"""Models of tests, whose settings come in one flat dict."""

from typing import Any

from sb3_nopg import NOPG, NOPGD, NOPGS
from sb3_nopg.bellman.settings import grouped


def make_nopg(policy: Any = "MlpPolicy", env: Any = None, variant: str = "D", **settings: Any) -> NOPG:
    """
    :param policy: as for NOPG
    :param env: as for NOPG
    :param variant: "D" or "S"
    :param settings: of NOPG and of its estimator, all in one
    """
    return {"D": NOPGD, "S": NOPGS}[variant](policy, env, **grouped(settings))
