"""The cut of the package as DESIGN.md draws it: imports point down, and starting costs little."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "sessionctl"
LAYERS = (
    ("cli", "__main__"),
    ("ops", "conversations", "persistence", "limits"),
    ("stores",),
    ("codec", "history", "locks", "durations", "config"),
    ("model", "keys", "errors"),
)
"""From top to bottom: a module imports from its own layer or from one below. ``__init__`` names the public things."""
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
ONLY_IN_CLI = {"typer", "rich"}
NOT_AT_THE_TOP = {"redis", "sqlalchemy", "psycopg", "rich", "watchfiles", "filelock", "platformdirs"}
THEIR_PLACES = {"redis": ("stores/redis/",), "sqlalchemy": ("stores/sql/",), "psycopg": ("stores/sql/",)}

MODULES = sorted(PACKAGE.rglob("*.py"))


def imported(path: Path, *, at_the_top: bool = False) -> list[tuple[str, int]]:
    """Every module that a file imports, as a full name, with the line; imports for type checking are left out."""
    package = path.relative_to(PACKAGE.parent).with_suffix("").parts
    package = package[:-1]
    tree = ast.parse(path.read_text())
    skipped = {
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    found = []
    for node in tree.body if at_the_top else ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            found.append((module, node.lineno))
            if module == "sessionctl" or node.module is None:
                found += [(f"{module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def layer_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "sessionctl" and len(parts) > 1 else None


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own == "__init__":
        return
    assert own in RANK, f"{own} has no layer"
    for module, line in imported(path):
        other = layer_of(module)
        if other in RANK and other != own:
            assert RANK[own] <= RANK[other], f"{path}:{line} imports {module}, which is above it"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_libraries_stay_where_they_belong(path: Path) -> None:
    where = str(path.relative_to(PACKAGE))
    for module, line in imported(path):
        name = module.split(".")[0]
        assert name != "click", f"{where}:{line}: typer is the only door to its parser"
        if name in ONLY_IN_CLI:
            assert where.startswith("cli/"), f"{where}:{line} imports {name}"
        if name in THEIR_PLACES:
            assert where.startswith(THEIR_PLACES[name]), f"{where}:{line} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_heavy_libraries_are_loaded_when_used(path: Path) -> None:
    where = str(path.relative_to(PACKAGE))
    for module, line in imported(path, at_the_top=True):
        name = module.split(".")[0]
        if name in NOT_AT_THE_TOP and not where.startswith(THEIR_PLACES.get(name, ("-",))):
            raise AssertionError(f"{where}:{line} imports {name} at the top")


@pytest.mark.parametrize("path", [p for p in MODULES if "ops" in p.parts], ids=lambda path: path.name)
def test_operations_print_nothing(path: Path) -> None:
    names = {node.func.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
             and isinstance(node.func, ast.Name)}  # fmt: skip
    assert "print" not in names
    assert "input" not in names


PURE = ("history.py", "codec", "ops/select.py", "ops/gc.py")


@pytest.mark.parametrize("path", [p for p in MODULES if str(p.relative_to(PACKAGE)).startswith(PURE)],
                         ids=lambda path: path.name)  # fmt: skip
def test_decisions_have_no_clock(path: Path) -> None:
    assert not {module for module, _ in imported(path)} & {"time", "os", "sys"}, "now is a parameter"


def loaded(*arguments: str) -> set[str]:
    """The modules that a command has loaded when it ends."""
    script = (
        "import sys\nfrom sessionctl.cli import call\n"
        f"try: call({list(arguments)!r})\nfinally: print(*sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_the_version_loads_nothing_heavy() -> None:
    found = loaded("--version")
    heavy = {"rich", "msgspec", "redis", "sqlalchemy", "watchfiles", "filelock", "asyncio", "json", "platformdirs"}
    assert not found & heavy
    assert not {name for name in found if name.startswith("sessionctl.stores")}


def test_a_list_loads_no_server_libraries(tmp_path: Path) -> None:
    found = loaded("list", "-o", "json", "-s", str(tmp_path))
    assert not found & {"redis", "sqlalchemy", "watchfiles", "filelock", "rich", "asyncio"}


def test_importing_the_package_is_cheap() -> None:
    script = "import sys, sessionctl; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {name for name in found if name.startswith("sessionctl.")}
    assert not set(found) & {"typer", "rich", "msgspec", "redis", "sqlalchemy"}
