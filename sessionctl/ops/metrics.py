"""What a run of gc did, in the text format that Prometheus reads (its node exporter collects such files)."""

from __future__ import annotations

import re
from collections import Counter

from . import keep
from .gc import Outcome, Plan

PREFIX = "sessionctl_gc"
_VALUE = r"(\d{1,12}(?:\.\d{1,6})?)"
HELP = {
    "scanned_sessions": "Sessions that the last run looked at.",
    "matched_sessions": "Sessions that a rule called expired in the last run.",
    "deleted_sessions": "Sessions that the last run deleted.",
    "archived_sessions": "Sessions that the last run copied into the archive.",
    "skipped_sessions": "Expired sessions that the last run left alone, by the kind of reason.",
    "failed_sessions": "Sessions that the last run could not deal with.",
    "freed_bytes": "Bytes that the last run freed.",
    "duration_seconds": "How long the last run took.",
    "exit_code": "Exit code of the last run; 0 is success.",
    "last_run_timestamp_seconds": "When the last run ended.",
    "last_success_timestamp_seconds": "When the last run that succeeded ended.",
}


def text(
    store: str,
    plan: Plan | None,
    outcome: Outcome | None,
    *,
    code: int,
    seconds: float,
    now: int,
    succeeded: str | None,
) -> str:
    """The metrics of a run that ended at ``now`` (ms) with exit code ``code``.

    ``plan`` and ``outcome`` are None where the run did not come so far; ``succeeded`` is the time of the last success
    before this run, as ``last_success`` reads it.
    """
    label = f'store="{_escaped(store)}"'
    done = outcome or Outcome()
    moment = f"{now / 1000:.3f}"
    skipped = Counter(getattr(skip.reason, "code", "other") for skip in done.skipped)
    samples: dict[str, list[tuple[str, str]]] = {
        "scanned_sessions": [(label, str(plan.scanned if plan else 0))],
        "matched_sessions": [(label, str(len(plan.actions) + len(plan.skipped) if plan else 0))],
        "deleted_sessions": [(label, str(len(done.deleted)))],
        "archived_sessions": [(label, str(len(done.archived)))],
        "skipped_sessions": [(f'{label},reason="{_escaped(reason)}"', str(n)) for reason, n in sorted(skipped.items())],
        "failed_sessions": [(label, str(len(done.failed)))],
        "freed_bytes": [(label, str(done.freed))],
        "duration_seconds": [(label, f"{seconds:.3f}")],
        "exit_code": [(label, str(code))],
        "last_run_timestamp_seconds": [(label, moment)],
        "last_success_timestamp_seconds": [(label, value) for value in [moment if code == 0 else succeeded] if value],
    }
    lines: list[str] = []
    for name, values in samples.items():
        lines += [f"# HELP {PREFIX}_{name} {HELP[name]}", f"# TYPE {PREFIX}_{name} gauge"]
        lines += [f"{PREFIX}_{name}{{{labels}}} {value}" for labels, value in values]
    return "\n".join(lines) + "\n"


def last_success(before: bytes | None, store: str) -> str | None:
    """The time of the last success for this store in metrics written earlier; None where they do not tell."""
    if before is None:
        return None
    line = re.escape(f'{PREFIX}_last_success_timestamp_seconds{{store="{_escaped(store)}"}} ')
    match = re.search(f"^{line}{_VALUE}$", before.decode("utf-8", "replace"), re.MULTILINE)
    return match[1] if match else None


def write(
    path: str, store: str, plan: Plan | None, outcome: Outcome | None, *, code: int, seconds: float, now: int
) -> None:
    """Write the metrics of a run into a file that all may read. Raises WriteFailed."""
    succeeded = last_success(keep.read(path, "--metrics"), store)
    written = text(store, plan, outcome, code=code, seconds=seconds, now=now, succeeded=succeeded)
    keep.write(path, written.encode("utf-8", "backslashreplace"), mode=0o644)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
