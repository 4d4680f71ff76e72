"""Files of models: which version wrote one, and whether this one can read it."""

import io

from sb3_nopg.common.errors import InputError
from sb3_nopg.policies.model_archive import ModelSource, settings_in

#: settings that a file of this version holds, and one of 0.1 does not
_SINCE_THIS_VERSION = "estimator_kwargs"


def check_version(source: ModelSource) -> None:
    """
    :param source: of a model's file, or the open file, which is left at its start
    :raises InputError: where a version of ours wrote it that had other settings; what else is wrong, SB3 will find
    """
    saved = settings_in(source)
    if saved is not None and "transitions" in saved and _SINCE_THIS_VERSION not in saved:
        name = "this file" if isinstance(source, io.IOBase) else str(source)
        raise InputError("path", f"sb3-nopg 0.1 wrote {name}", "Load it with that version, or train again")
