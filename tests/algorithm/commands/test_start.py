"""How ``nopg`` and the package start: soon, and only with what they need."""

import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

import sb3_nopg
from sb3_nopg.commands import main
from sb3_nopg.commands.group import COMMANDS


@pytest.mark.slow
def test_help_and_the_package_wait_for_neither_torch_nor_sb3():
    program = (
        "import sys, sb3_nopg\n"
        "from typer.testing import CliRunner\n"
        "from sb3_nopg.commands.main import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "print([name for name in ('torch', 'stable_baselines3', 'gymnasium', 'scipy', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_command_is_there_when_it_is_called_and_help_has_its_line():
    group = typer.main.get_command(main.app)
    assert set(COMMANDS) <= set(group.commands)
    said = CliRunner().invoke(main.app, ["--help"]).output
    for name, line in COMMANDS.items():
        assert group.commands[name].name == name
        assert line.split()[0] in said
        assert group.commands[name].help.split()[0] == line.split()[0], "the line is the command's own, if shorter"


def test_names_of_the_package_are_those_that_it_lists():
    assert set(sb3_nopg._MODULES) == set(sb3_nopg.__all__) <= set(dir(sb3_nopg))
    for name in sb3_nopg.__all__:
        assert getattr(sb3_nopg, name) is not None
    for room in sb3_nopg._ROOMS:
        assert getattr(sb3_nopg, room).__name__ == f"sb3_nopg.{room}"
    with pytest.raises(AttributeError, match="nonsense"):
        sb3_nopg.nonsense  # noqa: B018


@pytest.mark.parametrize(("missing", "extra"), [("onnx", "export"), ("serial", "robot")])
def test_the_demo_asks_for_its_packages_before_it_works(monkeypatch, missing: str, extra: str):
    there = main.find_spec
    monkeypatch.setattr(main, "find_spec", lambda name: None if name == missing else there(name))
    monkeypatch.setattr(main, "_robot_part", lambda name: pytest.fail("work has begun"))
    done = CliRunner().invoke(main.app, ["demo"])
    assert done.exit_code == 2
    assert f"{missing} ({extra})" in done.output
    assert 'pip install "sb3-nopg[export,robot]"' in done.output
