"""``python -m nopg_robot.commands.check_board PORT``: what a serial board counts, sees and gives, line by line."""

import time
from typing import Annotated

import typer

from nopg_robot.plants.serial_board import SerialPlant
from nopg_robot.rig.errors import PlantError
from nopg_robot.rig.protocol import Flag, State
from nopg_robot.rig.sections import SerialConnection

# Commands must come oftener than any board's watchdog allows; nobody reads so fast.
ASK_S, SHOW_S = 0.01, 0.2

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def line_of(state: State) -> str:
    """
    :param state: of a board
    :return: for a person who turns encoders and opens switches
    """
    seen = [flag.name for flag in Flag if state.flags & flag and flag.name is not None]
    return f"cart {state.cart:+8d}   pole {state.pole:+8d}   {state.applied_mv / 1000.0:+7.3f} V   {' '.join(seen) or '-'}"


class BoardUnderTest(SerialPlant):
    """Shows what a run would end for: here somebody opens contacts on purpose."""

    state: State | None = None

    def _check(self, state: State) -> None:
        self.state = state


@app.command()
def check(
    port: Annotated[str, typer.Argument(help="Such as /dev/ttyACM0 or COM3.")],
    volt: Annotated[
        float, typer.Option("--volt", help="Asked of the motor all the time. First with the motor's supply off.")
    ] = 0.0,
    seconds: Annotated[float, typer.Option("--seconds", help="Then it ends, at 0 V; so does Ctrl-C.")] = 60.0,
    baud: Annotated[int, typer.Option("--baud", help="Of the line.")] = 1_000_000,
) -> None:
    """Watch a serial board while you turn its encoders, open its switches and measure at its pins."""
    connection = SerialConnection(plant="serial", port=port, baud=baud, read_timeout_s=0.1)
    try:
        board = BoardUnderTest(connection)
        with board:
            _watch(board, volt, seconds)
    except KeyboardInterrupt:
        # This is how it ends.
        return
    except PlantError as error:
        typer.echo(f"check_board: {error}", err=True)
        raise typer.Exit(3) from error


def _watch(board: BoardUnderTest, volt: float, seconds: float) -> None:
    begin_s = shown_s = time.perf_counter()
    while (now_s := time.perf_counter()) < begin_s + seconds:
        board.read()
        board.write(volt)
        if now_s >= shown_s and board.state is not None:
            shown_s += SHOW_S
            typer.echo(line_of(board.state))
        time.sleep(ASK_S)


if __name__ == "__main__":
    app()
