"""Sessions in SQL tables (extra ``sql``): ``sqlite:///PATH`` and ``postgresql://…``, by SQLAlchemy Core.

Documents live in ``sessions``, the table of Seepient's documentation (FORMATS.md section 1, SQL), so that an
application which knows ``id``, ``messages`` and ``updated_at`` shares it with us.
Logs live in ``session_logs`` and, line by line, in ``session_entries``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import StoreError

if TYPE_CHECKING:
    from .store import SqlStore

__all__ = ["open_sql"]


def open_sql(url: str) -> SqlStore:
    """Open ``sqlite:///PATH`` (``sqlite:////PATH`` for one from the root) or ``postgresql://USER@HOST/DATABASE``.

    No server is asked before the store is used. Raises UnknownStore, and StoreError where the extra is not installed.
    """
    try:
        from .address import parse
        from .store import SqlStore

        return SqlStore(parse(url))
    except ModuleNotFoundError as error:
        raise StoreError(
            f"SQL stores need {error.name}, which is not installed", hint="pip install 'sessionctl[sql]'"
        ) from error
