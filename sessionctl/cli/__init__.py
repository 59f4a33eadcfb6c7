"""The command line: one file per command, loaded when it is called; errors become exit codes here and only here."""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from typer.core import TyperGroup

from ..errors import SessionctlError, StoreError
from .params import simplify

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS: dict[str, str] = {
    "list": "list",
    "show": "show",
    "tail": "tail",
    "gc": "gc",
    "delete": "delete",
    "migrate": "migrate",
    "repair": "repair",
    "stats": "stats",
    "stores": "stores",
    "completion": "completion",
}
"""Command to the module of this package that holds it."""

COMPLETING = "_SESSIONCTL_COMPLETE"
"""The environment variable by which a completion script asks."""
INTERRUPTED = 130
PIPE_CLOSED = 141


class LazyGroup(TyperGroup):
    """Loads a command's module when it is named, so that starting stays instant."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = dict.fromkeys(COMMANDS)
        simplify(self)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        if self.commands[cmd_name] is None:
            app = import_module(f".{COMMANDS[cmd_name]}", __package__).app
            command = typer.main.get_command(app)
            command.name = cmd_name
            simplify(command)
            self.commands[cmd_name] = command
        return self.commands[cmd_name]

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is named, with the configured defaults of its options."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and command is not None and not ctx.resilient_parsing and not {"-h", "--help"} & set(rest):
            from .defaults import defaults_of

            ctx.default_map = {name: defaults_of(name, command, tuple(COMMANDS))}
        return name, command, rest

    def _main_shell_completion(self, *arguments: Any, **settings: Any) -> None:
        """Answer a completion script, if one asks."""
        if COMPLETING in os.environ:
            from typer.completion import completion_init  # type: ignore[attr-defined]

            completion_init()
            os.environ["COLUMNS"] = "9999"  # an answer is a line: no help may be folded
            super()._main_shell_completion(*arguments, **settings)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise typer.Exit(PIPE_CLOSED) from None


app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(value: bool) -> None:
    if value:
        from .. import __version__

        print(f"sessionctl {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Look after the stored sessions of AI agents: list, show, follow, prune, move and repair them.

    Stores are folders of Seepient documents and LoopEngine logs, Redis, and SQL; see --store of each command.
    """


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process with the exit code of DESIGN.md."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for name, mode, access in (("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY)):
        # Closed by the caller: its number must not go to the next file that is opened, nor its text elsewhere. Data
        # that nobody can get is an error as on a full disk: stdout takes nothing.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.open(os.devnull, access), mode))  # noqa: PTH123, SIM115
    code = call(arguments)
    try:
        sys.stdout.flush()
    except OSError as error:
        code = PIPE_CLOSED if isinstance(error, BrokenPipeError) else _no_output(error, arguments)
        # Nothing may be written at exit any more: the reader is gone, or the disk is full.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def call(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    from .streams import LACKING

    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors=LACKING)  # type: ignore[union-attr]
    try:
        result = typer.main.get_command(app).main([*arguments], prog_name="sessionctl", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except SessionctlError as error:
        report(error, arguments)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        return PIPE_CLOSED
    except OSError as error:
        return _no_output(error, arguments)
    except Exception as error:  # noqa: BLE001 - the last line of defence: every bug ends in one line
        return _unexpected(error, arguments)


def report(error: SessionctlError, arguments: Sequence[str]) -> None:
    """Print an error to stderr: one line and a hint, or an object with ``-o json``."""
    from .output import wants_json, write_error

    write_error(error.code, str(error), error.hint, as_json=wants_json(arguments))


def _no_output(error: OSError, arguments: Sequence[str]) -> int:
    """Stores raise errors of their own: what is left is output that cannot be written."""
    why = "it is closed" if error.errno == errno.EBADF else (error.strerror or str(error)).lower()
    report(StoreError(f"cannot write the output: {why}"), arguments)
    return StoreError.exit_code


def _plainly(message: str) -> str:
    """A message of the parser in words that people use."""
    for wordy, plain in (
        ("Input should be a valid integer, unable to parse string as an integer", "it is not a whole number"),
        ("Input should be", "it should be"),
    ):
        message = message.replace(wordy, plain)
    return message


def _unexpected(error: Exception, arguments: Sequence[str]) -> int:
    """Usage errors of the parser, and bugs."""
    from .output import wants_json, write_error

    as_json = wants_json(arguments)
    format_message = getattr(error, "format_message", None)
    if format_message is not None:
        context = getattr(error, "ctx", None)
        if type(error).__name__ == "NoArgsIsHelpError":
            return 2  # the parser has printed the help
        path = context.command_path if context is not None else "sessionctl"
        write_error("usage", _plainly(format_message()), f"see {path} --help", as_json=as_json)
        return int(getattr(error, "exit_code", 2))
    if os.environ.get("SESSIONCTL_DEBUG") == "1":
        import traceback

        traceback.print_exception(error)
    write_error(
        "bug",
        f"{type(error).__name__}: {error}",
        "this is a bug in sessionctl; run again with SESSIONCTL_DEBUG=1 and report what it prints",
        as_json=as_json,
    )
    return 1
