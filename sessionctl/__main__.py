"""``python -m sessionctl``."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from .cli import run

    run()


if __name__ == "__main__":
    main()
