"""Defaults of options from the configuration: ``[options.gc]`` with ``older-than = "30d"``."""

from __future__ import annotations

from types import UnionType
from typing import Any, get_args

from ..config import check_keys, check_type, expand, load, resolve

STORES = ("store", "archive", "backup")
"""The options whose value is a store."""


def defaults_of(name: str, command: Any, commands: tuple[str, ...]) -> dict[str, Any]:
    """The configured defaults of a command by parameter name, as the parser wants them.

    Raises ConfigError for an unknown command or option and for a value of the wrong type.
    """
    config = load()
    if not config.options:
        return {}
    check_keys(config, config.options, commands, "options")
    written = config.options.get(name, {})
    parameters = by_option(command)
    check_keys(config, written, tuple(parameters), "options", name)
    found: dict[str, Any] = {}
    for option, value in written.items():
        parameter = parameters[option]
        hint = command.callback.__annotations__[parameter.name]
        check_type(config, value, wanted_type(hint), "options", name, option)
        if isinstance(value, str):
            place = config.place("options", name, option)
            value = resolve(value, place) if option in STORES else expand(value, place)
        found[parameter.name] = value
    return found


def by_option(command: Any) -> dict[str, Any]:
    """A command's options by their long name without dashes."""
    return {
        flag[2:]: parameter
        for parameter in command.params
        if parameter.param_type_name == "option"
        for flag in parameter.opts
        if flag.startswith("--")
    }


def wanted_type(hint: Any) -> str:
    """What the value of an option with this type hint is called in the configuration (see ``config.TYPES``)."""
    kind = get_args(hint)[0]
    plain = next((t for t in get_args(kind) if t is not type(None)), kind) if isinstance(kind, UnionType) else kind
    names: dict[Any, str] = {bool: "true or false", int: "number", str: "text"}
    return names.get(plain, "list of texts")


def given(context: Any, *parameters: str) -> bool:
    """Whether one of these parameters comes from the command line, not from a default."""
    return any(getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE" for name in parameters)
