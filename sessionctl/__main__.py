"""``python -m sessionctl``."""

from __future__ import annotations

import gc

COLLECT_RARELY = 1_000_000, 50, 100
"""Nearly nothing here forms cycles: looking for them among many rows costs a tenth of the time and finds none."""


def main() -> None:
    """Run the command line."""
    gc.set_threshold(*COLLECT_RARELY)
    from .cli import run

    try:
        run()
    finally:
        gc.freeze()  # or the interpreter, on its way out, would look for cycles among all there is


if __name__ == "__main__":
    main()
