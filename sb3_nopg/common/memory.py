"""How much memory is free, on the machine and in the container that a program may run in."""

from pathlib import Path

import psutil

_CONTAINER = Path("/sys/fs/cgroup")


def free_memory() -> int:
    """
    :return: bytes that this process may still take
    """
    in_container = _free_in_container()
    on_machine = int(psutil.virtual_memory().available)
    return on_machine if in_container is None else min(on_machine, in_container)


def _free_in_container() -> int | None:
    """What psutil does not know: it tells of the whole machine, of which a container (cgroup v2) may have only a part."""
    try:
        limit, used = ((_CONTAINER / name).read_text(encoding="ascii").strip() for name in ("memory.max", "memory.current"))
        counts = dict(line.split() for line in (_CONTAINER / "memory.stat").read_text(encoding="ascii").splitlines())
    except OSError:
        return None
    # Files that were read and are kept just in case count as used, and make room when it is asked for.
    reclaimable = int(counts.get("inactive_file", 0))
    return None if limit == "max" else max(0, int(limit) - int(used) + reclaimable)
