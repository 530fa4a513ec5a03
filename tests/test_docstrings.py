"""Docstrings of the API reference are complete: every parameter, and every error class that a function raises itself.

What is public is what the reference shows: the objects that lines ``::: name`` of `docs/api` name.
"""

import ast
import inspect
import pkgutil
import re
import textwrap
from pathlib import Path

import dpgb_dask
from dpgb_dask import SchemaError, errors

API = Path(__file__).parents[1] / "docs" / "api"
SHOWN = re.findall(
    r"^::: (\S+)$",
    "".join(page.read_text(encoding="utf-8") for page in sorted(API.glob("*.md"))),
    re.MULTILINE,
)
ERRORS = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, dpgb_dask.DPGBError)
}


def public_objects():
    """Yield the name and the object of each class and function of the reference."""
    for path in SHOWN:
        found = pkgutil.resolve_name(path)
        if inspect.isclass(found) or inspect.isfunction(found):
            yield path.removeprefix("dpgb_dask."), found


def of_class(name, kind):
    """Yield a class, with the function that makes it, and its public methods and properties, inherited ones too."""
    yield name, kind, kind.__init__, kind
    for own in dir(kind):
        member = inspect.getattr_static(kind, own)
        if isinstance(member, staticmethod | classmethod):
            member = member.__func__
        elif isinstance(member, property):
            member = member.fget
        if own.startswith("_") or not inspect.isfunction(member):
            continue
        if member.__module__.startswith("dpgb_dask"):
            yield f"{name}.{own}", member, member, kind


def public_api():
    """Yield a name, the object with the docstring and parameters, what may raise, and the class of both."""
    for name, found in public_objects():
        if inspect.isclass(found):
            yield from of_class(name, found)
        else:
            yield name, found, found, None


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


def told_above(owner, name):
    """Yield the docstrings that a class's, or its method's, adds to: those of its bases in this library.

    A method that overrides another takes what that takes; fields of a base class are its attributes.
    """
    for base in owner.__mro__[1:] if owner is not None else ():
        if f"{base.__module__}.{base.__name__}".startswith("dpgb_dask."):
            found = base if name is None else vars(base).get(name)
            yield inspect.getdoc(found) or ""


def faults(documented, called, owner=None):
    """Return what a docstring lacks, and what it calls a parameter that is none."""
    doc = inspect.getdoc(documented) or ""
    above = list(told_above(owner, None if documented is owner else documented.__name__))
    texts = [sections(text) for text in (doc, *above)]
    titles = ("Parameters", "Attributes") if documented is owner else ("Parameters",)
    named = heads(texts[0].get("Parameters", ""))
    for text in texts[1:]:
        named |= {name for title in titles for name in heads(text.get(title, ""))}
    missing = [name for name in parameters_of(documented) if name not in named]
    # a line that lost its indent reads as a parameter, too
    unknown = sorted(heads(texts[0].get("Parameters", "")) - set(parameters_of(documented)))
    raised = {name for text in texts for name in heads(text.get("Raises", ""))}
    allowed = [ERRORS[name] for name in raised if name in ERRORS]
    silent = [name for name in raised_by(called) if not issubclass(ERRORS[name], tuple(allowed))]
    return missing + unknown + sorted(silent) + ([] if doc else ["everything"])


def test_docstrings_name_every_parameter_and_error():
    found = {name: faults(*rest) for name, *rest in public_api()}
    assert {"Schema.load", "Ledger.grant", "DPGBClassifier.fit", "losses.Huber.link"} <= set(found)
    assert {name: lacks for name, lacks in found.items() if lacks} == {}


def test_every_public_name_stands_in_the_reference():
    shown = {name.removeprefix("dpgb_dask.") for name in SHOWN}
    modules = {name.split(".")[0] for name in shown}
    assert "errors" in shown  # all of them
    assert {*dpgb_dask.__all__} - {"__version__", *vars(errors)} - shown - modules == set()


def test_both_estimators_say_the_same_of_what_they_share():
    told, other = (
        sections(inspect.getdoc(kind))
        for kind in (dpgb_dask.DPGBRegressor, dpgb_dask.DPGBClassifier)
    )
    assert told["Parameters"] == other["Parameters"]
    assert heads(told["Attributes"]) == heads(other["Attributes"]) - {"classes_"}


def test_the_check_finds_what_is_missing():
    def bare(name, *, other):
        """Do something.

        Parameters
        ----------
        name : str
        """
        raise KeyError(name, other)

    def shifted(name):
        """Do something.

        Parameters
        ----------
        name : str
            Told in two lines,
        the second of which is not indented.
        """

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
    assert faults(shifted, shifted) == ["the second of which is not indented."]
    assert faults(raises, raises) == ["SchemaError"]
