"""``sessionctl stores``."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ..config import StoreConfig, load
from ..errors import ConfigError, SessionctlError, StoreError, UnknownStore
from ..stores import open_store
from .options import Common, default_store, takes
from .output import Output, make_console, plain_table, safe_line

app = typer.Typer(add_completion=False)
PATIENCE = 10.0
"""Seconds after which a store is said not to answer."""
COLUMNS = ("name", "url", "archive", "protect", "default", "answers", "state", "milliseconds")
STYLES = {True: "green", False: "red"}


@dataclass
class Answer:
    """Whether a store answers, and how it is called without secrets. ``milliseconds`` is how long that took."""

    url: str
    ok: bool = False
    state: str = f"no answer in {PATIENCE:.0f} s"
    milliseconds: int | None = None


@app.command(epilog="Examples:\n\n  sessionctl stores\n\n  sessionctl stores -o json")
@takes
def stores(common: Annotated[Common, ("table", "json", "jsonl", "csv")]) -> None:
    """List the configured stores, with passwords hidden, and whether each answers.

    Exit code 7 says that one of them does not.
    """
    out = common.out()
    config = load()
    try:
        default = default_store(common.store)
    except UnknownStore:
        default = ""
    except ConfigError:  # told in its row, beside the others
        default = config.default or ""
    named = dict(config.stores)
    if default and default not in named:
        named = {"": StoreConfig(default), **named}
    answers = ask(named)
    rows = [_row(name, named[name], answers[name], name == default or not name) for name in named]
    if out.format == "table":
        _table(out, rows)
        if not config.stores:
            place = f" in {config.path}" if config.path else ": there is no home folder for the configuration"
            out.note(f"no stores are configured{place}; this is the default store")
    else:
        out.rows(rows, COLUMNS)
    raise typer.Exit(0 if all(answer.ok for answer in answers.values()) else StoreError.exit_code)


def ask(named: dict[str, StoreConfig]) -> dict[str, Answer]:
    """Ask all stores at once; one that hangs is given up after PATIENCE."""
    answers = {name: Answer(config.shown) for name, config in named.items()}
    threads = [
        threading.Thread(target=_ask, args=(config, answers[name]), daemon=True) for name, config in named.items()
    ]
    for thread in threads:
        thread.start()
    until = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return answers


def _ask(config: StoreConfig, answer: Answer) -> None:
    started = time.monotonic()
    try:
        with open_store(config.url) as store:
            answer.url = store.url
            there = store.exists()
        answer.ok, answer.state = True, "answers" if there else "does not exist yet"
    except SessionctlError as error:
        answer.state = str(error)
    answer.milliseconds = round((time.monotonic() - started) * 1000)


def _row(name: str, config: StoreConfig, answer: Answer, default: bool) -> dict[str, Any]:
    from ..config import hide_secrets

    archive = config.written_archive
    return {
        "name": name or None,
        "url": answer.url,
        "archive": None if archive is None else hide_secrets(archive),
        "protect": list(config.protect),
        "default": default,
        "answers": answer.ok,
        "state": answer.state,
        "milliseconds": answer.milliseconds,
    }


def _table(out: Output, rows: list[dict[str, Any]]) -> None:
    head = ("", "NAME", "STORE", "STATE", "PROTECTED", "ARCHIVE")
    lines = [
        (
            "*" if row["default"] else "",
            row["name"] or "(default)",
            safe_line(row["url"]),
            safe_line(row["state"]),
            safe_line(" ".join(row["protect"])),
            safe_line(row["archive"] or ""),
        )
        for row in rows
    ]
    if not out.is_terminal:
        for line in plain_table(head, lines):
            out.print(line)
        return
    from rich.table import Table
    from rich.text import Text

    used = [index for index in range(len(head)) if index < 4 or any(line[index] for line in lines)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index in used:
        table.add_column(head[index], overflow="fold", no_wrap=index < 2)
    for row, cells in zip(rows, lines, strict=True):
        styles = ("bold cyan", "bold", "", STYLES[row["answers"]], "", "dim")
        table.add_row(*(Text(cells[index], styles[index]) for index in used))
    make_console(stderr=False).print(table)
