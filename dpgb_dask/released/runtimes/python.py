"""A model as one Python file that needs no other package: the text of `scorer`, with the model in it."""

import inspect
import json
from pathlib import Path

from dpgb_dask.released.export import model_to_dict
from dpgb_dask.released.runtimes import scorer
from dpgb_dask.released.runtimes.content import Content, commented
from dpgb_dask.remote import put

EMPTY = 'DOCUMENT = ""\n'
WIDTH = 2000  # characters of the document per line: editors dislike longer ones


def to_python(content: Content, path: str | Path) -> None:
    """Write a model as a Python file (docs/exports.md).

    Parameters
    ----------
    content : Content
    path : str or Path

    Raises
    ------
    StructureError
        If the file cannot be written.

    Privacy
    -------
    Released values only; the file begins with the privacy report in words.
    """
    text = json.dumps(document(content))
    pieces = [repr(text[k : k + WIDTH]) for k in range(0, len(text), WIDTH)]
    own = "DOCUMENT = (\n" + "".join(f"    {piece}\n" for piece in pieces) + ")\n"
    put(path, commented(content.statement, "#") + inspect.getsource(scorer).replace(EMPTY, own))


def document(content: Content) -> dict[str, object]:
    """Return the document of a scorer: parts of the model file, and the privacy report in words."""
    return {
        "schema": content.schema.to_dict(),
        "model": model_to_dict(content.model),
        "statement": content.statement,
    }
