"""Options that several commands share, as groups: a command names a group and gets one object with the values."""

from __future__ import annotations

import functools
import inspect
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo

from ..durations import parse_duration, parse_moment
from ..errors import SessionctlError, UsageError
from ..keys import is_pattern
from ..model import KINDS, STATUSES, Kind
from .complete import store_names, words
from .defaults import wanted_type
from .output import FORMATS, Output

if TYPE_CHECKING:
    from ..config import StoreConfig
    from ..ops.select import Filter
    from ..stores.base import Store

STORE, FILTER, SAFETY = "Store and output", "Which sessions", "Safety"
METAVARS = {
    "STORE": ("store", "archive", "backup"),
    "FORMAT": ("output",),
    "TIME": ("older_than", "newer_than", "since"),
    "DURATION": ("ttl", "idle", "min_idle", "lock_wait", "poll"),
    "NAME": ("provider", "model", "owner", "tenant", "environment", "agent"),
    "STATUS": ("status",),
    "KIND": ("kind",),
    "N|P%": ("max_delete",),
}
"""What stands for the value of an option in the help, and for which; for others N or TEXT."""
_METAVAR_OF = {name: metavar for metavar, names in METAVARS.items() for name in names}

NoPager = Annotated[
    bool, typer.Option("--no-pager", help="Print at once what is longer than the screen.", rich_help_panel=STORE)
]


def now_ms() -> int:
    """The time, in ms since the epoch."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Common:
    """``--store``, ``--output`` and what goes with them.

    A command that has not all FORMATS names its own: ``Annotated[Common, ("table", "json")]``.
    """

    formats: tuple[str, ...] = FORMATS

    store: Annotated[
        str | None,
        typer.Option(
            "-s",
            "--store",
            help="Folder, URL (redis://, sqlite:///, …) or configured name. Default: $SESSIONCTL_STORE, else the "
            "configured default, else $SEEPIENT_SESSION_DIR, else ~/.seepient/sessions.",
            rich_help_panel=STORE,
            show_default=False,
            autocompletion=store_names,
        ),
    ] = None
    output: Annotated[
        str,
        typer.Option(
            "-o",
            "--output",
            help=f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}.",
            rich_help_panel=STORE,
            autocompletion=words(*FORMATS),
        ),
    ] = "table"
    null: Annotated[
        bool, typer.Option("-0", "--null", help="End each id with NUL, not a newline (-o ids).", rich_help_panel=STORE)
    ] = False
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Say also what was done to each session.", rich_help_panel=STORE)
    ] = False
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Say nothing but errors on stderr.", rich_help_panel=STORE)
    ] = False

    def open(self, *, reading: bool = False) -> Store:
        """The store that is meant. ``reading``: payloads will be read; said, once, where that leaves a trace."""
        from ..stores import open_store

        store = open_store(default_store(self.store))
        if reading and not self.quiet and (caution := store.caution()):
            print(f"note: {caution}", file=sys.stderr)
        return store

    def settings(self, store: Store) -> StoreConfig:
        """What the configuration says of this store, by whatever name it was opened."""
        return settings_of(default_store(self.store), store)

    def out(self) -> Output:
        """The output in the wanted format; UsageError for one that this command does not have."""
        if self.null and self.output != "ids":
            raise UsageError("-0 goes with -o ids")
        return Output(choice("output", self.output, self.formats), self.null, verbose=self.verbose, quiet=self.quiet)


def default_store(named: str | None) -> str:
    """The store a command works on (DESIGN.md, Where a store is named)."""
    if named is not None:
        if not named:
            raise UsageError("--store is empty")
        return named
    from ..config import load
    from ..stores import default_folder

    return os.environ.get("SESSIONCTL_STORE") or load().checked_default() or default_folder()


def settings_of(named: str, store: Store) -> StoreConfig:
    """What the configuration says of a store that was opened as ``named``.

    What is configured for a place holds for it also when it is opened by its folder or URL; the patterns of several
    names for one place add up.
    """
    from ..config import StoreConfig, load

    found: list[StoreConfig] = []
    for name, config in load().stores.items():
        if name == named or same_place(config, store):
            found.insert(0 if name == named else len(found), config)
    if not found:
        return StoreConfig()
    return replace(found[0], protect=tuple(dict.fromkeys(p for config in found for p in config.protect)))


def same_place(config: StoreConfig, store: Store) -> bool:
    """Whether a configured store is the one that is open."""
    from ..stores import open_store

    if ("://" in config.written_url) is not ("://" in store.url):
        return False
    try:
        with open_store(config.url) as other:
            return other.place() == store.place()
    except SessionctlError:
        return False  # a store that cannot be opened cannot be the open one


@dataclass(frozen=True)
class Filters:
    """The filters of ``list``, which narrow other commands too."""

    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status",
            help=f"{', '.join(STATUSES)}; may be repeated.",
            rich_help_panel=FILTER,
            autocompletion=words(*STATUSES),
        ),
    ] = None
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", help="document or log.", rich_help_panel=FILTER, autocompletion=words(*KINDS)),
    ] = None
    provider: Annotated[str | None, typer.Option("--provider", help="Name or pattern.", rich_help_panel=FILTER)] = None
    model: Annotated[str | None, typer.Option("--model", help="Name or pattern.", rich_help_panel=FILTER)] = None
    owner: Annotated[str | None, typer.Option("--owner", help="Name or pattern.", rich_help_panel=FILTER)] = None
    tenant: Annotated[str | None, typer.Option("--tenant", help="Name or pattern.", rich_help_panel=FILTER)] = None
    environment: Annotated[
        str | None, typer.Option("--environment", help="Name or pattern.", rich_help_panel=FILTER)
    ] = None
    agent: Annotated[str | None, typer.Option("--agent", help="Name or pattern.", rich_help_panel=FILTER)] = None
    locked: Annotated[
        bool | None, typer.Option("--locked/--not-locked", help="Locked now, or not.", rich_help_panel=FILTER)
    ] = None
    newer_than: Annotated[
        str | None,
        typer.Option("--newer-than", help="Active since: 24h, 2026-01-31, …", rich_help_panel=FILTER),
    ] = None

    def build(self, now: int, patterns: tuple[str, ...] = (), older_than: str | None = None) -> Filter:
        """The filter; raises UsageError for unknown words."""
        from ..ops.select import Filter

        return Filter(
            patterns,
            frozenset(choice("status", s, STATUSES) for s in self.status or ()),
            frozenset(choice("kind", k, KINDS) for k in self.kind or ()),
            parse_moment(older_than, now) if older_than is not None else None,
            parse_moment(self.newer_than, now) if self.newer_than is not None else None,
            self.provider,
            self.model,
            self.owner,
            self.tenant,
            self.environment,
            self.agent,
            self.locked,
        )

    @property
    def kinds(self) -> tuple[Kind, ...]:
        wanted = tuple(kind for kind in KINDS if kind in (self.kind or ()))
        return wanted or KINDS


@dataclass(frozen=True)
class Safety:
    """What destructive commands share."""

    dry_run: Annotated[
        bool, typer.Option("-n", "--dry-run", help="Show what would be done; do nothing.", rich_help_panel=SAFETY)
    ] = False
    yes: Annotated[
        bool, typer.Option("-y", "--yes", help="Do not ask (needed without a terminal).", rich_help_panel=SAFETY)
    ] = False
    force: Annotated[
        bool,
        typer.Option("--force", help="Also what is locked, in use or of uncertain age.", rich_help_panel=SAFETY),
    ] = False
    archive: Annotated[
        str | None,
        typer.Option(
            "--archive",
            help="Store to copy each session to, verified, first.",
            rich_help_panel=SAFETY,
            autocompletion=store_names,
        ),
    ] = None
    min_idle: Annotated[
        str, typer.Option("--min-idle", help="Protect what changed within this time.", rich_help_panel=SAFETY)
    ] = "60s"


def wait_seconds(text: str) -> float:
    """``--lock-wait`` in seconds."""
    return parse_duration(text, wait=True) / 1000


def pattern_hint(patterns: Sequence[str]) -> str | None:
    """What to know where nothing fits; None where all are patterns indeed."""
    plain = next((pattern for pattern in patterns if not is_pattern(pattern)), None)
    if plain is None:
        return None
    return f"a PATTERN stands for whole keys or ids; for those that begin so: {shlex.quote(plain + '*')}"


def inner_folder(store: Store) -> str | None:
    """The folder in a store's in which the sessions are that one would expect in the store, quoted for a shell."""
    from ..stores.folder import FolderStore, ref_of

    if isinstance(store, FolderStore):
        for place in (store.path / ".sessions", store.path / "sessions", store.path / ".seepient" / "sessions"):
            with suppress(OSError):
                if any(ref_of(name) for name in os.listdir(place)):
                    return shlex.quote(str(place))
    return None


def warn_of_emptiness(out: Output, store: Store, scanned: int) -> None:
    """A store without any session may be the wrong one, which nobody would notice of a nightly job."""
    if not scanned and (inner := inner_folder(store)) is not None:
        out.note(f"note: no sessions in {store.url}; there are some in {inner}")


def choice(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """``value`` if it is allowed; else a UsageError that names the nearest and all."""
    if value in allowed:
        return value
    from difflib import get_close_matches

    from ..keys import quoted

    near = get_close_matches(value, allowed, 1)
    raise UsageError(
        f"no such {name}: {quoted(value)}" + (f"; did you mean {near[0]}?" if near else ""),
        hint=f"it is one of {', '.join(allowed)}",
    )


def takes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command name option groups: each parameter whose type is a group becomes the group's options.

    Groups are dataclasses of annotated fields; the command is called with one object a group.
    """
    hints = get_type_hints(function, include_extras=True)
    groups = {name: _group(hint) for name, hint in hints.items() if hasattr(_plain(hint), "__dataclass_fields__")}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in groups:
            parameters.extend(groups[name][1])
        else:
            parameters.append(parameter.replace(annotation=hints[name], kind=parameter.KEYWORD_ONLY))
    parameters = [p.replace(annotation=_with_metavar(p.name, p.annotation)) for p in parameters]

    @functools.wraps(function)
    def command(**values: Any) -> Any:
        made = {name: make(**{p.name: values.pop(p.name) for p in own}) for name, (make, own) in groups.items()}
        return function(**values, **made)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _plain(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _group(hint: Any) -> tuple[Callable[..., Any], list[inspect.Parameter]]:
    """What makes a group's object, and the parameters it is made of."""
    group = _plain(hint)
    own = [f for f in fields(group) if f.name != "formats"]
    hints = get_type_hints(group, include_extras=True)
    if hint is group:
        return group, [_parameter(f.name, f.default, hints[f.name]) for f in own]
    formats: tuple[str, ...] = get_args(hint)[1]
    hints["output"] = _with(
        hints["output"], help=f"{', '.join(formats[:-1])} or {formats[-1]}.", autocompletion=words(*formats)
    )
    own = [f for f in own if f.name != "null" or "ids" in formats]
    return functools.partial(group, formats=formats), [_parameter(f.name, f.default, hints[f.name]) for f in own]


def _parameter(name: str, default: Any, hint: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _with(hint: Any, **settings: Any) -> Any:
    """The annotation of an option with other settings."""
    info = copy(get_args(hint)[1])
    vars(info).update(settings)
    return Annotated[get_args(hint)[0], info]


def _with_metavar(name: str, hint: Any) -> Any:
    """The annotation with what stands for the option's value in the help; a flag has no value."""
    if get_origin(hint) is not Annotated or not isinstance(info := get_args(hint)[1], OptionInfo) or info.metavar:
        return hint
    wanted = wanted_type(hint)
    return (
        hint
        if wanted == "true or false"
        else _with(hint, metavar=_METAVAR_OF.get(name, "N" if wanted == "number" else "TEXT"))
    )
