"""Where the hyper-parameters are that come with the package."""

from pathlib import Path

import sb3_nopg


def shipped_configs() -> dict[str, Path]:
    """Config files that come with the package, by algorithm."""
    package = Path(sb3_nopg.__file__).parent
    # Inside the package when installed, beside it in a checkout.
    folder = package / "zoo_configs" if (package / "zoo_configs").is_dir() else package.parent / "zoo_configs"
    return {path.stem: path for path in sorted(folder.glob("*.yml"))}
