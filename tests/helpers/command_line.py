"""``nopg`` as a person calls it."""

from typer.testing import CliRunner

from sb3_nopg.commands.main import app


def nopg(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def fine(*arguments: object) -> str:
    result = nopg(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: object) -> str:
    result = nopg(*arguments)
    assert result.exit_code == 2, result.output
    # Notes on the data come before.
    errors = [line for line in result.stderr.splitlines() if not line.startswith("Note: ")]
    assert len(errors) == 1, result.stderr
    return errors[0] + "\n"
