"""Which code a result comes from: a name that changes when anything changes that a trial could have used."""

import ast
import functools
import hashlib
import importlib.util
import pathlib
from collections.abc import Iterator
from typing import Any

# Packages whose code counts. Versions of all others are written beside the results.
_OURS = ("sb3_nopg", "nopg_envs")


@functools.cache
def code_version(module: str) -> str:
    """
    Of a module of ours and of all modules of ours that it imports, directly or not. Comments, docstrings and layout do not
    count, nor does what is imported by a name made at run time. As the files are at the first call in this process.

    :param module: its full name
    :return: twelve hexadecimal digits
    """
    files = _files()
    digest = hashlib.sha256(module.encode())
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in files:
            continue
        seen.add(name)
        waiting += _read(files[name].read_bytes(), name)[0]
    for name in sorted(seen):
        digest.update(f"{name}\n{_read(files[name].read_bytes(), name)[1]}\n".encode())
    return digest.hexdigest()[:12]


@functools.cache
def _read(source: bytes, name: str) -> tuple[tuple[str, ...], str]:
    """What a module imports, and what it means. Kept, since experiments have most modules in common."""
    tree = ast.parse(source)
    return tuple(_imports(tree, name)), _meaning(tree)


def _files() -> dict[str, pathlib.Path]:
    """The file of each module of ours."""
    files = {}
    for package in _OURS:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        root = pathlib.Path(spec.origin).parent
        for path in root.rglob("*.py"):
            parts = (package, *path.relative_to(root).with_suffix("").parts)
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def _imports(tree: ast.Module, own_name: str) -> Iterator[str]:
    """Names of modules, and of what may be one, that a module imports; and its own packages', which run before it."""
    names = [own_name]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    for name in names:
        parts = name.split(".")
        yield from (".".join(parts[:n]) for n in range(1, len(parts) + 1))


def _meaning(tree: ast.Module) -> str:
    """A module without its docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
                node.body = node.body[1:]
    return _written(tree)


def _written(part: Any) -> str:
    """The same in every version of Python: what is empty is left out, since new versions have new fields that mostly are."""
    if isinstance(part, ast.AST):
        fields = [(name, value) for name, value in ast.iter_fields(part) if value is not None and value != []]
        return f"{type(part).__name__}({', '.join(f'{name}={_written(value)}' for name, value in fields)})"
    if isinstance(part, list):
        return f"[{', '.join(map(_written, part))}]"
    return repr(part)
