"""Docstrings of the public API are complete: every parameter, and every error class that a function raises itself."""

import ast
import inspect
import re
import textwrap

import dpgb_dask
from dpgb_dask import SchemaError, errors

ERRORS = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, dpgb_dask.DPGBError)
}
NAMES = [name for name in dpgb_dask.__all__ if name != "__version__" and name not in ERRORS]
ALIKE = {dpgb_dask.DPGBRegressor: dpgb_dask.DPGBClassifier}  # "Parameters are those of …"


def public_objects():
    """Yield the name and the object of each public class and function."""
    for name in NAMES:
        found = getattr(dpgb_dask, name)
        if inspect.ismodule(found):
            own_names = found.__all__ if found is dpgb_dask.io else ()
            yield from ((f"{name}.{own}", getattr(found, own)) for own in own_names)
        elif not inspect.isclass(found) or not issubclass(found, Warning):
            yield name, found


def of_class(name, kind):
    """Yield a class, with the function that makes it, and its public methods and properties, inherited ones too."""
    yield name, kind, kind.__init__
    for own in dir(kind):
        member = inspect.getattr_static(kind, own)
        if isinstance(member, staticmethod | classmethod):
            member = member.__func__
        elif isinstance(member, property):
            member = member.fget
        if own.startswith("_") or not inspect.isfunction(member):
            continue
        if member.__module__.startswith("dpgb_dask"):
            yield f"{name}.{own}", member, member


def public_api():
    """Yield a name, the object with the docstring and parameters, and the function that may raise."""
    for name, found in public_objects():
        if inspect.isclass(found):
            yield from of_class(name, found)
        elif callable(found):
            yield name, found, found


def sections(docstring):
    """Return the sections of a numpydoc docstring by their titles."""
    parts = re.split(r"^(\w[\w ]*)\n-{3,}\n", docstring, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def heads(section):
    """Return the names before the colon of lines that are not indented: ``X, y : array`` gives X and y."""
    lines = re.findall(r"^(\S.*)$", section, flags=re.MULTILINE)
    return {name.strip(" *") for line in lines for name in line.split(" : ")[0].split(",")}


def parameters_of(documented):
    known = inspect.signature(documented).parameters
    return [name for name in known if name not in ("self", "cls")]


def raised_by(called):
    """Return the library's errors that a function's own lines raise, by name."""
    if not inspect.isfunction(called):
        return set()
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(called)))
    except OSError:  # made by a dataclass
        return set()
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            names.add(getattr(node.exc.func, "id", ""))
    return names & set(ERRORS)


def faults(documented, called):
    """Return what a docstring lacks."""
    doc = inspect.getdoc(documented) or ""
    if documented in ALIKE:
        other = ALIKE[documented]
        assert inspect.signature(documented) == inspect.signature(other)
        assert f"Parameters are those of `{other.__name__}`" in doc
        documented, doc = other, inspect.getdoc(other)
    told = sections(doc)
    missing = [
        name for name in parameters_of(documented) if name not in heads(told.get("Parameters", ""))
    ]
    allowed = [ERRORS[name] for name in heads(told.get("Raises", "")) if name in ERRORS]
    silent = [name for name in raised_by(called) if not issubclass(ERRORS[name], tuple(allowed))]
    return missing + sorted(silent) + ([] if doc else ["everything"])


def test_docstrings_name_every_parameter_and_error():
    found = {name: faults(documented, called) for name, documented, called in public_api()}
    assert {"Schema.load", "Ledger.reserve", "DPGBClassifier.fit", "io.write_dataset"} <= set(found)
    assert {name: lacks for name, lacks in found.items() if lacks} == {}


def test_the_check_finds_what_is_missing():
    def bare(name, *, other):
        """Do something.

        Parameters
        ----------
        name : str
        """
        raise KeyError(name, other)

    def raises(name):
        """Do something.

        Parameters
        ----------
        name : str

        Raises
        ------
        StructureError
            Always.
        """
        raise SchemaError(name)

    assert faults(bare, bare) == ["other"]
    assert faults(raises, raises) == ["SchemaError"]
