"""Every error that sessionctl raises on purpose: a stable code, a message, an exit code.

The codes are part of the interface (``{"error": {"code": ...}}`` with ``-o json``) and never change their meaning.
"""

from __future__ import annotations

from typing import ClassVar


class SessionctlError(Exception):
    """Base of all errors. ``code`` names the kind, ``exit_code`` is what the command line ends with.

    ``str(error)`` is one line for people; ``hint`` is what to try next, or None.
    """

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    template: ClassVar[str] = "{detail}"

    def __init__(self, detail: object = "", *, hint: str | None = None, **fields: object) -> None:
        self.hint = hint
        self.fields = fields
        super().__init__(self.template.format(detail=detail, **fields))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled as it is: the message is not put into the template again."""
        return Exception.__new__, (type(self), str(self)), self.__dict__


class UsageError(SessionctlError):
    """The call itself is wrong; nothing was done."""

    code = "usage"
    exit_code = 2


class InvalidKey(UsageError):
    """Text that can never name a session (a path, a control character, too long)."""

    code = "invalid-key"
    template = "not a valid session id: {detail}"


class InvalidDuration(UsageError):
    """Not a duration such as 90s, 30m, 24h, 7d, 2w or 1h30m."""

    code = "invalid-duration"
    template = "not a duration: {detail} (write 90s, 30m, 24h, 7d, 2w or 1h30m)"


class InvalidMoment(UsageError):
    """Not a moment in ISO 8601."""

    code = "invalid-moment"
    template = (
        "not a moment: {detail} "
        "(write 2026-01-31 or 2026-01-31T12:00:00Z, or a duration: 90s, 30m, 24h, 7d, 2w or 1h30m)"
    )


class UnknownStore(UsageError):
    """No store type answers to this name or scheme."""

    code = "unknown-store"


class ConfigError(UsageError):
    """The configuration file cannot be used; the message names file, line and the allowed keys."""

    code = "invalid-config"


class UnsupportedKind(UsageError):
    """The store cannot hold this kind of session."""

    code = "unsupported-kind"


class NeedsConfirmation(UsageError):
    """A destructive command without a terminal and without ``--yes``."""

    code = "needs-yes"


class TooMany(UsageError):
    """More sessions match than ``--max-delete`` allows; nothing was deleted."""

    code = "too-many"


class SessionNotFound(SessionctlError):
    """No session of that key or id in this store."""

    code = "not-found"
    exit_code = 3
    template = "no such session: {detail}"


class AmbiguousId(SessionctlError):
    """An id or a start of one that fits several sessions."""

    code = "ambiguous"
    exit_code = 4


class SessionDamaged(SessionctlError):
    """The stored payload cannot be read as a session. Not the same as absence."""

    code = "damaged"
    exit_code = 5
    template = "the session is damaged: {detail}"


class SessionLocked(SessionctlError):
    """Somebody else holds the session's lock; ``str`` says who, since when and until when, as far as is known."""

    code = "locked"
    exit_code = 6


class SessionInUse(SessionctlError):
    """Protected: changed a moment ago, awaiting approval, or of unknown age."""

    code = "in-use"
    exit_code = 6


class LockLost(SessionctlError):
    """The lock ended (expired, taken, or its server forgot it) while work was done under it."""

    code = "lock-lost"
    exit_code = 6


class SessionChanged(SessionctlError):
    """The session is no longer the version that was looked at; nothing was written."""

    code = "changed"
    exit_code = 6
    template = "changed meanwhile: {detail}"


class StoreError(SessionctlError):
    """The store cannot be reached, read or written."""

    code = "store"
    exit_code = 7


class StoreNotFound(StoreError):
    """There is no store at that place."""

    code = "no-store"


class WriteFailed(StoreError):
    """A write did not happen, and what was there before is still there."""

    code = "write-failed"


class TooManySessions(SessionctlError):
    """The owner has as many live sessions as are allowed (FORMATS.md section 1, Limits of the server)."""

    code = "too-many-sessions"
    exit_code = 6


class SomeFailed(SessionctlError):
    """Some sessions failed, the rest is done."""

    code = "some-failed"
    exit_code = 8


class OwnershipMismatch(SessionctlError):
    """The session belongs to somebody else, or to nobody (FORMATS.md section 1, Ownership)."""

    code = "SESSION_OWNERSHIP_MISMATCH"
    exit_code = 9
    template = "the session belongs to another principal"


class StoreBusy(SessionctlError):
    """Another gc or migrate is at work on this store."""

    code = "busy"
    exit_code = 75
