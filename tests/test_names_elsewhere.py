"""What CI's scripts, notebooks and tests take from the package is there; a plain run starts few of them."""

import ast
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
FILES = sorted([*ROOT.glob("ci/**/*.py"), *ROOT.glob("tests/**/*.py"), *NOTEBOOKS])


def code_of(path: Path) -> str:
    if path.suffix == ".py":
        return path.read_text(encoding="utf-8")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    lines = [line for cell in cells if cell["cell_type"] == "code" for line in cell["source"]]
    return "\n".join(line.rstrip("\n") for line in lines if not line.startswith(("%", "!")))


def is_ours(module: str | None) -> bool:
    return module is not None and module.split(".")[0] == "dpgb_dask"


def attributes(code: str) -> Iterator[tuple[object, str]]:
    """Each (module of the package, name that is taken from it), by an import or by a dot."""
    tree = ast.parse(code)
    bound: dict[str, object] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and is_ours(node.module):
            module = import_module(str(node.module))
            for alias in node.names:
                if not hasattr(module, alias.name):
                    with suppress(ModuleNotFoundError):
                        import_module(f"{node.module}.{alias.name}")
                yield module, alias.name
                bound[alias.asname or alias.name] = getattr(module, alias.name, None)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if is_ours(alias.name):
                    last = import_module(alias.name)
                    bound[alias.asname or "dpgb_dask"] = (
                        last if alias.asname else sys.modules["dpgb_dask"]
                    )

    def value(node: ast.expr) -> object:
        if isinstance(node, ast.Name):
            return bound.get(node.id)
        if isinstance(node, ast.Attribute):
            return getattr(value(node.value), node.attr, None)
        return None

    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            owner = value(node.value)
            if isinstance(owner, ModuleType) and is_ours(owner.__name__):
                yield owner, node.attr


def missing(code: str) -> list[str]:
    return [
        f"{owner.__name__}.{name}" for owner, name in attributes(code) if not hasattr(owner, name)
    ]


def test_names_of_the_package_are_there():
    assert len(FILES) > 100
    wrong = {path.relative_to(ROOT).as_posix(): missing(code_of(path)) for path in FILES}
    assert {name: names for name, names in wrong.items() if names} == {}


def test_a_name_that_moved_away_is_found():
    assert missing("from dpgb_dask.cli import fit as command\ncommand.add()") == [
        "dpgb_dask.cli.fit.add"
    ]
    assert missing("from dpgb_dask.cli import fitting") == ["dpgb_dask.cli.fitting"]
    assert missing("import dpgb_dask\ndpgb_dask.losses.loss\ndpgb_dask.Fit") == [
        "dpgb_dask.losses.loss",
        "dpgb_dask.Fit",
    ]
    assert missing("import dpgb_dask.names as names\nnames.RECIPES\nfit = 3\nfit.add") == []
