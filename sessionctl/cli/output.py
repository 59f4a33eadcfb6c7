"""Everything that is printed: data to stdout in the wanted format, all else to stderr, and no text obeyed."""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

FORMATS = ("table", "json", "jsonl", "csv", "ids")

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_UNSAFE_LINE = re.compile(_UNSAFE.pattern[:-1] + "\t\n]")


def _mark(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x100:
        return {9: "\\t", 10: "\\n", 13: "\\r"}.get(code, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def safe(text: str) -> str:
    """Text of a session for a terminal: newline and tab stay, every other control or bidi character becomes visible."""
    return _UNSAFE.sub(_mark, text)


def safe_line(text: str) -> str:
    """``safe`` on one line."""
    return text if text.isascii() and text.isprintable() else _UNSAFE_LINE.sub(_mark, text)


def to_json(value: object, *, indent: int | None = None) -> str:
    """JSON in ASCII: whatever is not plain stands as a ``\\u`` escape, so that no reader obeys it."""
    import msgspec

    try:
        plain = msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        plain = b"\x7f"
    if plain.isascii() and b"\x7f" not in plain:
        return msgspec.json.format(plain, indent=indent or 0).decode()
    return json.dumps(value, indent=indent).replace("\x7f", "\\u007f")


def indented(text: str) -> str:
    """JSON of many lines as an item of a list; no string holds a newline as such."""
    return "  " + text.replace("\n", "\n  ")


def plural(count: int, noun: str) -> str:
    """``1 session``, ``2 sessions``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether errors are to be objects, told from the raw arguments: parsing may be what failed."""
    for index, argument in enumerate(arguments):
        if argument in ("-ojson", "--output=json", "-o=json"):
            return True
        if argument in ("-o", "--output") and arguments[index + 1 : index + 2] == ["json"]:
            return True
    return False


def write_error(code: str, message: str, hint: str | None, *, as_json: bool) -> None:
    """An error on stderr, in one line, with a hint in a second."""
    if as_json:
        text = to_json({"error": {"code": code, "message": message, "hint": hint}})
    else:
        text = f"sessionctl: {safe_line(message)}" + (f"\n  {safe_line(hint)}" if hint else "")
    try:
        print(text, file=sys.stderr, flush=True)
    except (BrokenPipeError, ValueError):
        pass


class Output:
    """One command's output. ``format`` is one of FORMATS; notes and questions go to stderr."""

    def __init__(self, format: str, null: bool = False, *, verbose: bool = False, quiet: bool = False) -> None:
        self.format = format
        self.null = null
        self.verbose = verbose
        self.quiet = quiet
        self._held: list[str] | None = None

    @property
    def is_terminal(self) -> bool:
        """Whether data is printed for a person at a terminal."""
        return sys.stdout.isatty()

    @property
    def can_ask(self) -> bool:
        """Whether there is a person to answer a question."""
        return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()

    def console(self) -> Console:
        """A Rich console on stdout; the text given to it must be ``safe`` and no markup."""
        return make_console(stderr=False)

    def print(self, text: str = "") -> None:
        """A line of data, as it is."""
        sys.stdout.write(text + "\n")

    def note(self, text: str) -> None:
        """A line for people, on stderr."""
        if self._held is not None:
            self._held.append(text)
        elif not self.quiet:
            print(safe_line(text), file=sys.stderr)

    def hold_notes(self) -> None:
        """Keep notes back until ``release_notes``: something else has the terminal."""
        self._held = []

    def release_notes(self) -> None:
        """Print the notes that were kept back."""
        held, self._held = self._held or [], None
        for text in held:
            self.note(text)

    def value(self, value: object) -> None:
        """One value as JSON: indented for ``json``, a line for ``jsonl``."""
        self.print(to_json(value, indent=2 if self.format == "json" else None))

    def rows(self, rows: Iterable[dict[str, Any]], columns: Sequence[str]) -> None:
        """Rows in any format but ``table``, written as they come."""
        self.rendered((self.render(row, columns) for row in rows), columns)

    def render(self, row: dict[str, Any], columns: Sequence[str]) -> str:
        """The text of one row in any format but ``table``."""
        if self.format == "ids":
            return str(row["key"])
        if self.format == "csv":
            return csv_line(_cell(row.get(column)) for column in columns)
        return indented(to_json(row, indent=2)) if self.format == "json" else to_json(row)

    def rendered(self, texts: Iterable[str], columns: Sequence[str]) -> None:
        """Write rows that ``render`` made, as they come."""
        write = {"json": self._json, "jsonl": self._jsonl, "csv": self._csv, "ids": self._ids}
        write[self.format](texts, columns)

    def _json(self, texts: Iterable[str], columns: Sequence[str]) -> None:
        empty = True
        for text in texts:
            sys.stdout.write(("[\n" if empty else ",\n") + text)
            empty = False
        self.print("[]" if empty else "\n]")

    def _jsonl(self, texts: Iterable[str], columns: Sequence[str]) -> None:
        for text in texts:
            self.print(text)

    def _csv(self, texts: Iterable[str], columns: Sequence[str]) -> None:
        self.print(csv_line(columns))
        self._jsonl(texts, columns)

    def _ids(self, texts: Iterable[str], columns: Sequence[str]) -> None:
        if self.null and not self.is_terminal:
            sys.stdout.flush()
            for text in texts:
                sys.stdout.buffer.write(os.fsencode(text) + b"\0")
            return
        for text in texts:
            sys.stdout.write(safe_line(text) + ("\0" if self.null else "\n"))


class _Line:
    """A file whose ``write`` hands back what it is given."""

    def write(self, text: str) -> str:
        return text


def csv_line(cells: Iterable[str]) -> str:
    """A line of CSV without its end."""
    return str(csv.writer(_Line(), lineterminator="").writerow(cells))


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return safe_line(" ".join(map(str, value)))
    return safe_line(str(value))


def make_console(*, stderr: bool, width: int | None = None) -> Console:
    """A Rich console that obeys NO_COLOR, FORCE_COLOR, COLUMNS and TERM, and reads no markup or emoji code."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, soft_wrap=False, width=width)


def plain_table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> Iterator[str]:
    """Rows in aligned columns, never cut, by display width; the last column is not padded."""
    lines = [tuple(head), *map(tuple, rows)]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    aligned = "  ".join(f"{{:{'>' if index in right else '<'}{width}}}" for index, width in enumerate(widths))
    for line in lines:
        if not "".join(line).isascii():
            pads = [width - _width(cell) for cell, width in zip(line, widths, strict=True)]
            cells = enumerate(zip(line, pads, strict=True))
            yield "  ".join(" " * pad + cell if i in right else cell + " " * pad for i, (cell, pad) in cells).rstrip()
        else:
            yield aligned.format(*line).rstrip()


def _width(text: str) -> int:
    """Cells that a text takes at a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def ascii_only() -> bool:
    """Whether stdout cannot show box-drawing characters."""
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    return not encoding.startswith("utf") or os.environ.get("TERM") == "dumb"
