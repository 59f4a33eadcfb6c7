"""A Typer program of two commands that do nothing: the least that a program of this kind takes to start."""

import typer

app = typer.Typer()


@app.command()
def one() -> None:
    """Do nothing."""


@app.command()
def two() -> None:
    """Do nothing else."""


if __name__ == "__main__":
    app()
