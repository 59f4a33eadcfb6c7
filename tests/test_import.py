"""The public names: all there, typed, and cheap until they are used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import sessionctl

HEAVY = ("redis", "sqlalchemy", "rich", "typer", "click", "msgspec", "filelock", "watchfiles", "asyncio", "psycopg")
DESIGN = (
    "open_store Conversations create_persistence_backend with_session get_history create_session_store session_id_for "
    "register_backend SessionKey SessionManager PersistenceBackend"
)


def run(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout


def test_importing_the_package_loads_nothing_heavy() -> None:
    program = f"import sys, sessionctl; print(*(m for m in {HEAVY} if m in sys.modules))"
    assert run(program).strip() == ""
    using = "import sys, sessionctl; sessionctl.open_store('memory:'); print('msgspec' in sys.modules)"
    assert run(using).strip() == "True"


def test_a_folder_and_a_turn_on_it_need_no_server_library(tmp_path: Path) -> None:
    program = (
        "import sys, sessionctl\n"
        f"talks = sessionctl.Conversations(sessionctl.open_store('logs:{tmp_path}'))\n"
        "with talks.session('k') as turn: turn.append({'role': 'user', 'content': 'x'})\n"
        "print(*(m for m in ('redis', 'sqlalchemy', 'rich', 'typer', 'watchfiles') if m in sys.modules))"
    )
    assert run(program).strip() == ""


def test_every_public_name_is_there() -> None:
    for name in sessionctl.__all__:
        assert getattr(sessionctl, name) is not None
        assert name in dir(sessionctl)
    assert set(DESIGN.split()) <= set(sessionctl.__all__)
    assert not hasattr(sessionctl, "nonsense")


def test_type_checkers_see_the_names_that_are_loaded() -> None:
    assert sessionctl.__file__ is not None
    tree = ast.parse(Path(sessionctl.__file__).read_text(encoding="utf-8"))
    block = next(n for n in tree.body if isinstance(n, ast.If))
    seen = {
        (node.module, alias.name) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert seen == {(module, name) for name, module in sessionctl._MODULES.items()}
    assert {name for _, name in seen} | {"__version__"} == set(sessionctl.__all__)


def test_star_imports_give_the_public_names() -> None:
    assert (
        run("from sessionctl import *; print(Conversations.__name__, open_store.__name__)")
        == "Conversations open_store\n"
    )
