"""What the documentation shows runs, what it names exists, and what there is stands in it."""

import importlib
import importlib.util
import inspect
import json
import multiprocessing
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import sphinx.cmd.build
import sphinx.ext.viewcode
import yaml

import nopg_envs
import sb3_nopg
from helpers.documentation import PAGES, README, blocks, command_lines
from helpers.repository import REPOSITORY
from nopg_robot.commands.command_line import ExitCode
from nopg_robot.control.safety_checks import Reason
from nopg_robot.rig.file import RigFile, shipped_rigs
from sb3_nopg.data.files import FORMATS
from sb3_nopg.recipes import SOURCES, check_recipe
from sb3_nopg.zoo.command_line import COMMANDS

sys.path.insert(0, str(REPOSITORY / "docs"))
import generated

TEXTS = {page.name: page.read_text(encoding="utf-8") for page in (*PAGES, README)}
# Where rl_zoo3, which is not ours to ask, declares the options of its programs. Its plots cannot be imported without seaborn.
ZOO_FILES = {
    "train": "train.py",
    "optimize": "train.py",
    "enjoy": "enjoy.py",
    "record": "record_video.py",
    "plot": "plots/all_plots.py",
}


@pytest.mark.slow
@pytest.mark.usefixtures("few_updates", "without_pictures")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(TEXTS[page.name], "python")], ids=lambda page: page.stem)
def test_the_python_of_a_page_runs_from_top_to_bottom(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "documentation"}
    for number, block in enumerate(blocks(TEXTS[page.name], "python")):
        exec(compile(block, f"{page.name}, block {number}", "exec"), namespace)


@pytest.mark.slow
def test_the_gradient_on_the_page_is_the_change_that_it_predicts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in blocks(TEXTS["algorithm.md"], "python") if "policy_gradient" in block]
    exec(compile(block, "algorithm.md", "exec"), {})
    predicted, actual = map(float, capsys.readouterr().out.split())
    assert actual == pytest.approx(predicted, rel=0.02)


# Commands


COMMAND_LINES = sorted({line for text in TEXTS.values() for line in command_lines(text)})
PROGRAMS = ("nopg", "nopg-deploy", "nopg-collect", "nopg-learn", "python", "make", "pip")


def test_commands_are_shown():
    assert len([line for line in COMMAND_LINES if line.startswith("nopg")]) > 30


@pytest.mark.parametrize("name", [page.name for page in PAGES])
def test_a_page_shows_only_programs_that_are_known(name: str):
    unknown = [line for line in command_lines(TEXTS[name]) if line.split()[0] not in PROGRAMS]
    assert not unknown


@pytest.mark.parametrize("line", [line for line in COMMAND_LINES if line.split()[0] in PROGRAMS])
def test_a_command_and_its_options_exist(line: str):
    program, *words = shlex.split(line)
    if program == "python" and words[0] == "-m":
        _check_module(words[1], words[2:])
    elif program == "python":
        _check_options((REPOSITORY / words[0]).read_text(encoding="utf-8"), words[1:])
    elif program == "make":
        assert re.search(rf"^{words[0]}:", (REPOSITORY / "Makefile").read_text(), flags=re.MULTILINE)
    elif program != "pip":
        _parse(program, words)


def _parse(program: str, words: list[str]) -> None:
    """As the program itself would, up to running it."""
    commands = generated.commands()
    name = program
    if words and words[0] in ("deploy", "collect", "learn") and program == "nopg":
        name, words = f"nopg-{words[0]}", words[1:]
    while words and f"{name} {words[0]}" in commands:
        name, words = f"{name} {words[0]}", words[1:]
    assert not hasattr(commands[name], "commands"), f"{name} is no whole command"
    commands[name].make_context(name, words)


def _check_module(module: str, words: list[str]) -> None:
    if module == "sb3_nopg.zoo":
        assert words[0] in COMMANDS
        path = _source("rl_zoo3").parent / ZOO_FILES[words[0]]
        words = words[1:]
    else:
        path = _source(module)
    _check_options((path.with_name("__main__.py") if path.name == "__init__.py" else path).read_text(encoding="utf-8"), words)


def _source(module: str) -> Path:
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin)


def _check_options(source: str, words: list[str]) -> None:
    for word in words:
        if re.match(r"--?[a-z]", word):
            assert f'"{word.partition("=")[0]}"' in source


def test_a_command_that_does_not_exist_is_found_out():
    for line in ("nopg trian x.npz", "nopg train x.npz --gama 0.9", "nopg train", "nopg-deploy a.onnx --seconds soon"):
        program, *words = shlex.split(line)
        with pytest.raises(BaseException, match=r"."):
            _parse(program, words)


# What pages name


def test_what_reads_a_pickle_without_being_told_to_is_named():
    rule = TEXTS["data.md"].partition("## Pickles and trust")[2].partition("\n## ")[0]
    reading = [getattr(sb3_nopg.NOPG, name) for name in ("load", "resume", "load_replay_buffer")]
    untold = [method.__name__ for method in reading if "trust" not in inspect.signature(method).parameters]
    assert untold == re.findall(r"One exception: `model\.(\w+)", rule)


@pytest.mark.parametrize(("name", "text"), TEXTS.items(), ids=TEXTS)
def test_functions_and_files_that_a_page_names_exist(name: str, text: str):
    for target in re.findall(r"\{py:\w+\}`~?([\w.]+)`", text):
        assert _resolve(target) is not None
    folders = "sb3_nopg|envs|robot|tests|benchmarks|examples|zoo_configs"
    for path in re.findall(rf"`((?:{folders})/[\w./]*)`", text):
        assert (REPOSITORY / path).exists(), path


def _resolve(target: str) -> Any:
    parts = target.split(".")
    for n_modules in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:n_modules]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[n_modules:]:
            found = getattr(found, attribute)
        return found
    return None


def test_symbols_of_the_algorithm_lie_in_the_files_that_the_page_is_about():
    named = set(re.findall(r"\{py:\w+\}`~?sb3_nopg\.(\w+\.\w+)\.", TEXTS["algorithm.md"]))
    bellman = {f"bellman.{name}" for name in ("gradient", "on_samples", "problem", "transition")}
    files = ("bandwidth", "effective_neighbors", "local_linear", "neighbors", "support", "weights")
    assert named >= bellman | {f"kernels.{name}" for name in files}


# What there is


def test_the_safety_chapter_knows_every_reason_and_every_exit_code():
    rig = TEXTS["rig.md"]
    assert [reason.value for reason in Reason if f"`{reason.value}`" not in rig] == []
    assert [code.value for code in ExitCode if f"| {code.value} |" not in rig] == []


def test_every_phase_and_every_shipped_rig_is_in_the_manual():
    source = inspect.getsource(importlib.import_module("nopg_robot.run.phases"))
    phases = set(re.findall(r'loop\.begin\(\s*"([\w-]+)"', source)) | {"run", "collect", "connect", "stop"}
    assert len(phases) >= 9
    assert [name for name in [*phases, *shipped_rigs()] if f"`{name}`" not in TEXTS["rig.md"]] == []


def test_every_format_has_its_row():
    assert [name for name in FORMATS if f"| `{name}` |" not in TEXTS["data.md"]] == []


def test_recipes_for_data_are_such():
    recipes = [yaml.safe_load(cell) for cell in re.findall(r"^\| `(\{.*\})` \|", TEXTS["commands.md"], flags=re.MULTILINE)]
    assert {check_recipe(recipe)[0] for recipe in recipes} == set(SOURCES)


def test_every_public_name_is_in_the_reference():
    names = [f"sb3_nopg.{name}" for name in sb3_nopg.__all__] + [f"nopg_envs.{name}" for name in nopg_envs.__all__]
    assert [name for name in names if not re.search(rf":: {re.escape(name)}$", TEXTS["api.md"], flags=re.MULTILINE)] == []


def test_every_extra_is_in_the_guide():
    text = (REPOSITORY / "pyproject.toml").read_text()
    section = text.split("[project.optional-dependencies]")[1].split("\n[")[0]
    extras = set(re.findall(r"^(\w+) = \[", section, flags=re.MULTILINE)) - {"dev", "docs"}
    assert extras
    assert [name for name in extras if f"| `{name}` |" not in TEXTS["guide.md"]] == []


def test_every_field_of_a_rig_file_is_explained_with_its_default():
    fields = {model.__name__: set(model.model_fields) for _, model in generated.rig_sections()}
    assert fields == {model: set(meanings) for model, meanings in generated.MEANINGS.items()}
    reference = generated.rig_file_reference()
    assert "| `voltage_volt` | number > 0 ≤ 24 | **required** |" in reference
    assert "| `rail_margin_m` | number ≥ 0.01 ≤ 1 | `0.05` |" in reference
    assert "| `angle_rad` | number > 0 ≤ 1.5708 | `0.35` |" in reference


def test_every_section_of_a_rig_file_is_there():
    sections = yaml.safe_load(RigFile.load("simulated").to_yaml())
    paths = {path.split(" ")[0] for path, _ in generated.rig_sections()}
    assert {name for name, value in sections.items() if isinstance(value, dict)} <= paths


def test_every_environment_and_every_command_is_made_into_a_table():
    assert set(generated.ENVIRONMENTS) == {name for name in gym.registry if name.startswith("nopg/")}
    reference = generated.command_reference()
    for name in ("nopg train", "nopg data convert", "nopg demo", "nopg improve", "nopg-deploy", "nopg-collect", "nopg-learn"):
        assert f"### `{name}`" in reference
    assert "| `--rig` | `simulated` | Rig file, or the name of one that comes with the package. |" in reference
    assert "| `inverse_pole_length` | 4.529 |" in generated.parameter_reference()


def test_all_that_is_generated_is_used_and_all_that_is_used_is_generated():
    marks = {mark for text in TEXTS.values() for mark in generated.MARK.findall(text)}
    assert marks == set(generated.PARTS)


def build_pages(folder: Path) -> None:
    warnings.simplefilter("ignore")
    os.chdir(REPOSITORY)
    # Pages with the source code take a third of the time, and have no text of ours that could be wrong.
    sphinx.ext.viewcode.setup = lambda app: {"parallel_read_safe": True}  # type: ignore[assignment]
    options = ["-W", "-q", "-b", "html", "-d", str(folder / "doctrees"), "docs", str(folder / "html")]
    sys.exit(sphinx.cmd.build.main(options))


@pytest.mark.slow
def test_the_pages_build_without_a_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    # In a copy of this process, which has imported what the pages are about.
    build = multiprocessing.get_context("fork").Process(target=build_pages, args=(tmp_path,))
    build.start()
    build.join()
    assert build.exitcode == 0, capfd.readouterr().err
    assert {f"{page.stem}.html" for page in PAGES} <= {path.name for path in (tmp_path / "html").iterdir()}
    rig = (tmp_path / "html" / "rig.html").read_text(encoding="utf-8")
    assert "slew_volt_per_s" in rig
    assert "generated:" not in rig


# What results name


def test_commits_that_results_name_are_in_the_history():
    """Whoever doubts a figure must be able to measure the same code."""
    git = ["git", "-C", str(REPOSITORY)]
    asked = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True, check=False)
    if asked.stdout.strip() != "false":
        pytest.skip("no whole history here")
    history = subprocess.run([*git, "rev-list", "HEAD"], capture_output=True, text=True, check=True).stdout.split()
    results = {str(path.relative_to(REPOSITORY)): path for path in (REPOSITORY / "benchmarks" / "results").rglob("*.md")}
    texts = TEXTS | {name: path.read_text(encoding="utf-8") for name, path in results.items()}
    # Seven digits or more: of a hash if they have a letter among them, or follow such words.
    named = {
        (name, commit)
        for name, text in texts.items()
        for commit in re.findall(r"(?<![\w#./-])(?=\w*[a-f]|(?<=commit )|(?<=at ))[0-9a-f]{7,40}\b", text)
        if re.search(r"\d", commit)
    }
    assert len(named) > 20
    assert [one for one in sorted(named) if not any(commit.startswith(one[1]) for commit in history)] == []


def test_what_sb3s_own_tests_ask_for_is_on_the_page():
    result = json.loads((REPOSITORY / "benchmarks" / "results" / "sb3_tests.json").read_text(encoding="utf-8"))
    tests = [test for test in result["tests"].values() if test["outcome"] != "left out"]
    failed = Counter(test["why"].split(":")[0].split(",")[0] for test in tests if test["outcome"] == "failed")
    # Without an explanation, a failure is ours.
    assert all(why.startswith("asks for ") for why in failed)
    shown = TEXTS["sb3.md"].partition("## SB3's own tests")[2]
    assert f"Of {len(tests)} tests" in shown
    assert f"{len(tests) - failed.total()} pass" in shown
    assert sorted(map(int, re.findall(r"^\| (\d+) \|", shown, flags=re.MULTILINE))) == sorted(failed.values())
