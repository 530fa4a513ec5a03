"""The layers of the package: which imports which, and which files may open, seal and pay."""

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest

import dpgb_dask

PACKAGE = Path(dpgb_dask.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

LOW = {
    "calls",
    "errors",
    "frozen",
    "installed",
    "names",
    "scalars",
    "display",
    "losses",
    "kernels",
    "values",
    "whole_files",
    "contracts",
}
READING = {
    "clients", "cf_decoding", "encoding", "graph_parts", "lazy_decoding", "remote", "zarr_arrays",
}  # fmt: skip
SIDES = LOW | READING | {"private", "controller", "released", "components"}
TOP = {
    "datasets",
    "estimators",
    "inferred",
    "matching",
    "parameters",
    "plots",
    "progress",
    "scoring",
    "verification",
    "io",
    "cli",
    "__main__",
    "testing",
    "diagnose",
    "drafts",
    "__init__",
}
TOP_OUTSIDE = {
    "numpy", "dask", "distributed", "xarray", "zarr", "pandas", "sklearn", "tqdm",
    "threadpoolctl", "fsspec",
}  # fmt: skip

# layer: (what it may import from us, what it may import from outside)
LAYERS: dict[str, tuple[set[str], set[str]]] = {
    "errors": (set(), set()),
    "calls": ({"errors"}, set()),
    "clients": ({"errors"}, {"dask", "distributed"}),
    "frozen": (set(), {"numpy"}),
    "installed": (set(), set()),
    "names": (set(), set()),
    "scalars": (set(), {"numpy"}),
    "display": (set(), set()),
    "losses": ({"calls", "errors", "frozen", "scalars"}, {"numpy"}),
    "kernels": ({"losses"}, {"numpy", "numba", "llvmlite"}),  # which comes with Numba
    "values": (set(), {"numpy", "pandas"}),
    "whole_files": ({"errors"}, set()),
    "contracts": (
        {"calls", "errors", "frozen", "scalars", "display", "losses", "kernels", "values"}
        | {"whole_files"},
        {"numpy"},
    ),
    "remote": ({"errors", "whole_files"}, {"fsspec"}),
    "warning_filters": ({"errors"}, set()),
    "cf_decoding": ({"errors", "warning_filters"}, {"numpy", "xarray"}),
    "graph_parts": (set(), {"dask"}),
    "lazy_decoding": (
        {"cf_decoding", "encoding", "errors", "graph_parts", "warning_filters"},
        {"numpy", "dask", "xarray"},
    ),
    "zarr_arrays": ({"cf_decoding", "errors"}, {"numpy", "dask", "zarr"}),
    "encoding": (LOW | {"graph_parts"}, {"numpy", "pandas", "dask"}),
    "private": (
        LOW | READING | {"warning_filters"},
        # google_crc32c: checksums of scratch (zarr needs it too); cryptography, fsspec: rows on shared stores; psutil:
        # memory (distributed needs it too); pyarrow: footers of Parquet (Dask's DataFrames need it too); cloudpickle:
        # rows of several chunks, from worker to worker, as Dask sends them
        {"numpy", "dask", "distributed", "zarr", "xarray", "pandas"}
        | {"google_crc32c", "cloudpickle", "cryptography", "fsspec", "psutil", "pyarrow"},
    ),
    # psutil: which file systems are mounted, where there is no /proc
    "controller": (LOW, {"numpy", "cryptography", "sqlalchemy", "psutil"}),
    "released": (
        LOW | READING,
        {"numpy", "dask", "xarray", "pandas", "zarr"},
    ),
    "components": (LOW, {"numpy"}),
    "recipes": (LOW | {"components"}, set()),
    "training": (
        LOW | {"private", "controller", "released", "components"},
        {"numpy", "dask", "threadpoolctl"},  # one BLAS thread
    ),
} | {name: (SIDES | TOP | {"recipes", "training"}, TOP_OUTSIDE) for name in TOP}

INSIDE_FUNCTIONS = {
    "released"
} | TOP  # layers that may import an extra (matplotlib, …) where it is used
BY_NAME = {
    "contracts/schema.py": {"drafts", "diagnose"}
}  # loaded when a user asks for them; they import the schema


def layer_of(path: Path) -> str:
    """First folder of a file, else its module's name."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All nodes of a file's syntax tree."""
    return list(ast.walk(tree_of(path)))


@cache
def imports_of(path: Path) -> list[tuple[str, bool]]:
    """(dotted module, whether inside a function) of every import in a file."""
    found = []
    by_name = {f"dpgb_dask.{own}" for own in BY_NAME.get(path.relative_to(PACKAGE).as_posix(), ())}

    def visit(node: ast.AST, inside: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend((alias.name, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if str(node.module).split(".")[0] == "dpgb_dask":
                found.extend((f"{node.module}.{alias.name}", inside) for alias in node.names)
            else:
                found.append((str(node.module), inside))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_module":
            names = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            found.extend((name, inside) for name in names if name not in by_name)
        for child in ast.iter_child_nodes(node):
            visit(child, inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))

    visit(tree_of(path), False)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_layer_imports_only_what_its_row_allows(path: Path) -> None:
    layer, name = layer_of(path), path.relative_to(PACKAGE).as_posix()
    ours, outside = LAYERS[layer]
    for module, inside in imports_of(path):
        head, _, rest = module.partition(".")
        if head == "dpgb_dask":
            target = rest.split(".")[0]
            if target not in LAYERS:  # `from dpgb_dask import DPGBClassifier`: the public names
                target = "__init__"
            allowed = target == layer or target in ours
        else:
            allowed = head in sys.stdlib_module_names or head in outside
            allowed = allowed or (inside and layer in INSIDE_FUNCTIONS)
        assert allowed, f"{name} ({layer}) may not import {module}"


def test_what_another_file_uses_has_a_public_name() -> None:
    for path in FILES:
        ours = [name for name, _ in imports_of(path) if name.startswith("dpgb_dask.")]
        private = [name for name in ours if re.search(r"\._(?!_)", name)]
        assert not private, f"{path.name} imports {private}"


def test_package_has_no_file_outside_the_table() -> None:
    assert {layer_of(path) for path in FILES} <= set(LAYERS)


def files_imported_by(path: Path) -> set[Path]:
    """Files that a file imports from other packages, or from modules beside it, also inside functions."""
    found = set()
    for name, _ in imports_of(path):
        target = PACKAGE.parent.joinpath(*name.split("."))
        for module in (target, target.parent):  # a name may be a module, or be in one
            files = {module.with_suffix(".py"), module / "__init__.py"} & set(FILES)
            if files:
                found |= files
                break
    # a package and the modules in it are one: its own file may import them
    return {f for f in found if f.parent != path.parent or "__init__" not in (f.stem, path.stem)}


def test_no_file_imports_itself_in_a_circle() -> None:
    left = {path: files_imported_by(path) - {path, PACKAGE / "__init__.py"} for path in FILES}
    # files that need none of the rest, or that none of it needs, are in no circle
    while free := [
        path
        for path, needed in left.items()
        if not needed & set(left) or not any(path in others for others in left.values())
    ]:
        for path in free:
            del left[path]
    assert not left, f"in circles: {sorted(p.relative_to(PACKAGE).as_posix() for p in left)}"


def callers_of(name: str) -> set[str]:
    """Files with a call ``name(…)``, ``x.name(…)`` or ``name[…](…)``."""
    callers = set()
    for path in FILES:
        for node in nodes_of(path):
            if not isinstance(node, ast.Call):
                continue
            function = node.func.value if isinstance(node.func, ast.Subscript) else node.func
            if name in (getattr(function, "attr", None), getattr(function, "id", None)):
                callers.add(path.relative_to(PACKAGE).as_posix())
    return callers


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("_open", {"controller/release.py"}),
        ("Released", {"controller/release.py"}),
        # journal and report read back, from JSON, what the door wrote
        ("Receipt", {"controller/release.py", "training/journal.py", "released/report.py"}),
    ],
)
def test_only_the_door_opens_seals_and_pays(name: str, allowed: set[str]) -> None:
    assert callers_of(name) == allowed


def test_files_for_people_are_written_in_one_place():
    assert callers_of("write_bytes") == {"whole_files.py"}
    assert callers_of("write_text") == set()


def test_versions_are_looked_up_in_one_place_before_a_fit():
    """`importlib.metadata` may miss what is installed while another thread imports, and a fit would break off."""
    asking = {path.name for path in FILES if "importlib.metadata import" in path.read_text()}
    assert asking == {"__init__.py", "installed.py"}


def test_no_test_imports_tests_as_a_package() -> None:
    """Only the folder ``tests`` is on pytest's path: such an import works in a checkout that is on the path, too."""
    for path in Path(__file__).parent.rglob("*.py"):
        lines = path.read_text().splitlines()
        assert not [line for line in lines if line.startswith(("from tests", "import tests"))], path


def test_processes_that_tests_start_import_the_installed_package() -> None:
    """Without ``-P`` the folder they stand in comes first: a checkout, whose kernels are compiled anew."""
    for path in Path(__file__).parent.rglob("*.py"):
        assert "sys.executable, " + '"-c"' not in path.read_text(), path
