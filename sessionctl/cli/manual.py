"""The man page, made from the same text as ``--help``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import typer

from . import COMMANDS, main

EXIT_CODES = (
    (0, "done, including that there was nothing to do"),
    (1, "a bug in sessionctl"),
    (2, "usage: nothing was done"),
    (3, "no such session"),
    (4, "an ambiguous id"),
    (5, "repair has findings of severity error left, or show met damage"),
    (6, "locked or in use"),
    (7, "the store cannot be reached or read"),
    (8, "some sessions failed, the rest is done"),
    (9, "not the owner"),
    (75, "another gc or migrate is at work on this store"),
    (130, "interrupted, by Ctrl-C, SIGTERM or SIGHUP: between two actions, and what was done is told"),
    (141, "the reader of the pipe went away"),
)
ENVIRONMENT = (
    ("SESSIONCTL_STORE", "the store of every command that names none"),
    ("SESSIONCTL_CONFIG", "the configuration file; empty for none"),
    ("SESSIONCTL_DEBUG", "1 shows the traceback of a bug"),
    ("SEEPIENT_SESSION_DIR", "the folder of Seepient's sessions"),
    ("REDIS_URL", "what the store redis means"),
    ("NO_COLOR, FORCE_COLOR, COLUMNS, TERM", "are obeyed"),
    ("PAGER", "shows what is longer than the screen"),
)
CONFIGURATION = """\
default = "prod"

[stores.prod]
url = "redis://:${REDIS_PASSWORD}@cache.internal/0"
archive = "/var/backups/sessions"
protect = ["acme:production:*"]

[options.gc]
older-than = "30d"
"""


def commands() -> dict[str, Any]:
    """Every command as the parser knows it."""
    found: dict[str, Any] = {}
    for name, module in COMMANDS.items():
        found[name] = typer.main.get_command(import_module(f".{module}", __package__).app)
    return found


def examples(command: Any) -> list[str]:
    """The examples at the end of a command's help."""
    head, *lines = [line.strip() for line in str(command.epilog).splitlines() if line.strip()]
    assert head == "Examples:"
    return lines


def page() -> str:
    """The man page sessionctl(1)."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    summary, *rest = _paragraphs(main.__doc__)
    yield '.TH SESSIONCTL 1 "" sessionctl "User Commands"'
    yield ".SH NAME"
    yield f"sessionctl \\- {_text(summary[0].lower() + summary[1:].rstrip('.'))}"
    yield ".SH SYNOPSIS"
    yield ".B sessionctl"
    yield r"\fICOMMAND\fR [\fIOPTION\fR]... [\fIARGUMENT\fR]..."
    yield ".SH DESCRIPTION"
    yield from _joined([summary, *rest])
    yield ".SH COMMANDS"
    for name, command in commands().items():
        yield from _command(name, command)
    yield ".SH EXIT STATUS"
    for code, meaning in EXIT_CODES:
        yield from (".TP", f".B {code}", _text(meaning))
    yield ".SH ENVIRONMENT"
    for name, meaning in ENVIRONMENT:
        yield from (".TP", f".B {name}", _text(meaning))
    yield ".SH FILES"
    yield "config.toml in the user's configuration folder (~/.config/sessionctl) names stores and defaults of options:"
    yield from (".PP", ".nf", *(_text(line) for line in CONFIGURATION.splitlines()), ".fi")


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    usage = " ".join(f"[{_name(p)}]" + ("..." if p.nargs == -1 else "") for p in arguments)
    yield f".SS sessionctl {name} [OPTION]... {usage}".rstrip()
    yield from _joined(_paragraphs(command.help))
    for argument in arguments:
        yield from (".TP", f".I {_name(argument)}", _text(argument.help or ""))
    panels: dict[str, list[Any]] = {}
    for option in (p for p in command.params if p.param_type_name == "option"):
        panels.setdefault(str(option.rich_help_panel), []).append(option)
    for panel, options in panels.items():
        yield from (".PP", f".B {_text(panel)}")
        for option in options:
            yield from (".TP", _option(option), _text(option.help or "") + _default(option))
    yield from (".PP", ".B Examples", ".PP", ".nf", *(_text(line) for line in examples(command)), ".fi")


def _option(option: Any) -> str:
    names = [f"\\fB{_text(name)}\\fR" for name in (*option.opts, *option.secondary_opts)]
    return ", ".join(names) + ("" if option.is_flag else f" \\fI{_name(option)}\\fR")


def _name(parameter: Any) -> str:
    written = parameter.metavar or parameter.name.rstrip("_")
    return _text(str(written).replace("_", "-").upper())


def _default(option: Any) -> str:
    shown = not option.is_flag and option.default is not None and option.show_default
    return f" [default: {_text(str(option.default))}]" if shown else ""


def _paragraphs(text: str | None) -> list[str]:
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", inspect.cleandoc(text or "")) if part.strip()]


def _joined(paragraphs: list[str]) -> Iterator[str]:
    for number, paragraph in enumerate(paragraphs):
        if number:
            yield ".PP"
        yield _text(paragraph)


def _text(text: str) -> str:
    """Text that troff takes as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...").replace("–", "\\(en")
    return "\\&" + text if text.startswith((".", "'")) else text
