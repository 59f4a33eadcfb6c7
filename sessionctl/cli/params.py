"""What our parameters leave out of Typer's ways: names of Python's types, and pydantic where a value needs no check."""

from __future__ import annotations

import re
from typing import Any

_NUMBER = re.compile(r"[0-9]{1,9}\Z").match


class _Plain:
    """Takes text and small numbers as they are written.

    All else, what is wrong above all, goes Typer's way, which begins with the tenth of a second that pydantic loads.
    """

    def __init__(self, param: Any) -> None:
        self._multiple = param.multiple or param.nargs == -1
        self._type = param.type_descriptor.annotation
        self._info = param.type_descriptor.parameter_info
        self._typers_own = param.get_runtime_param

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        """The value that the command gets."""
        if value is None:
            return () if self._multiple else None
        if self._type is str and isinstance(value, str):
            return value
        if self._type == list[str] and isinstance(value, tuple) and all(isinstance(item, str) for item in value):
            return [*value]
        if self._type is int and isinstance(value, str) and _NUMBER(value) and self._allows(int(value)):
            return int(value)
        return self._typers_own().coerce(value, param=param, ctx=ctx)

    def _allows(self, number: int) -> bool:
        least, most = self._info.min, self._info.max
        return (least is None or number >= least) and (most is None or number <= most)


def simplify(command: Any) -> None:
    """Make a command's help shorter and its start faster."""
    help_option = command.get_help_option
    command.get_help_option = lambda ctx: _simpler(help_option(ctx))
    for param in command.params:
        _simpler(param)


def _simpler(param: Any) -> Any:
    if param is None:
        return None
    if param.param_type_name == "argument" or param.is_flag:
        param.display_type_rich = lambda ctx: None  # ``<bool>`` and ``<list[str]>`` tell nobody much
    if hasattr(param, "get_runtime_param"):  # else this Typer does not ask pydantic
        plain = _Plain(param)
        param.get_runtime_param = lambda: plain
    return param
