"""Public facts about a table, given by the user and never read from rows: names, bounds, categories, target.

The JSON form is ``Schema.to_dict()`` (docs/schema.md §2). Everything here is public; nothing in this module sees a row.
"""

import itertools
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from dpgb_dask.calls import spoken
from dpgb_dask.contracts.blanks import is_draft, open_facts, without_blanks
from dpgb_dask.contracts.features import (
    MAX_CATEGORIES,
    Categorical,
    Encoded,
    Feature,
    Grouped,
    check_labels,
    encoded_as,
    feature_of,
    finite,
    in_words,
    refuse_quoted,
    refuse_unknown,
    to_json,
)
from dpgb_dask.display import WORDS, brief, html_table
from dpgb_dask.errors import (
    DPGBError,
    SchemaError,
    check_flag,
    first_few,
    json_object,
    short,
    where_json_breaks,
)
from dpgb_dask.scalars import is_listing, is_number, python_scalar, whole_number
from dpgb_dask.values import is_missing, listed_values
from dpgb_dask.whole_files import file_of, write_given

VERSION = 1
MAX_FEATURES = 65_535  # encoded columns: trees name one in 16 bits
# rows · max_weight · 2**15 < 2**31 must leave room for several rows between flushes
MAX_WEIGHT = 1 << 12

TOO_DEEP = "it is nested too deeply to be a schema."


@dataclass(frozen=True, slots=True)
class Target:
    """What is predicted.

    Parameters
    ----------
    name : str
    type : {"binary", "multiclass", "numeric"}
    classes : tuple
        Public class labels; empty for a numeric target.
    low, high : float
        Public bounds of a numeric target.
    """

    name: str
    type: Literal["binary", "multiclass", "numeric"]
    classes: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 1.0

    # bounds are halved first, so that two huge ones do not overflow

    @property
    def middle(self) -> float:
        """The middle of the bounds, where a score of 0 lies."""
        return self.low / 2 + self.high / 2

    @property
    def half(self) -> float:
        """Half the distance between the bounds: natural units of one unit of score."""
        return self.high / 2 - self.low / 2


class Schema:
    """The public description of a table.

    Parameters
    ----------
    features : mapping of str to feature
        ``(low, high)`` declares a numeric feature, a list of categories a categorical one, ``bool`` one that is true
        or false, ``{"from": {value: group}}`` and ``{"buckets": n}`` one of more than 250 values; `Numeric`,
        `Categorical`, `Bool`, `Datetime`, `Grouped` and `Hashed` have more options. A list may be a range, an index or
        one-dimensional array of texts, whole numbers or truth values, or a ``CategoricalDtype``; of two days,
        or two numbers that are not one apart, which may be bounds, it is refused.
    classes : sequence, optional
        Class labels of a classification target.
    target_bounds : (float, float), optional
        Public bounds of a regression target.
    target : str
        Name of the target column.
    ignore : sequence of str
        Columns that may be present and are never used.
    max_weight : int
        Largest sample weight; larger ones are clipped to it. Multiplies the sensitivity.
    unit_id : str, optional
        Column that names the privacy unit; never a feature. A row without a unit has weight 0.
    private : bool
        False when the facts were read from the data (``schema="infer"``). Every copy and file of the schema keeps it,
        and no fit under such a schema can charge a ledger.

    Attributes
    ----------
    features : dict of str to feature
        As declared: what columns X has, in order.
    encoded : dict of str to Numeric or Categorical
        The columns that features are encoded as, in order: what bins, codes and tables of a model are numbered by. A
        `Datetime` is one column for each of its parts, named ``feature.part``; any other feature is one column of its
        own name.
    sources : tuple of str
        Of each encoded column, the name of its feature.

    Raises
    ------
    SchemaError
        If a bound, list or name is missing or contradictory; the message names the column and the way out.

    Privacy
    -------
    Public. Every fact here is assumed to be known to the reader of the model.

    Examples
    --------
    >>> Schema({"age": (17, 90), "sex": ["Female", "Male"]}, classes=[0, 1]).names
    ('age', 'sex')
    """

    @spoken
    def __init__(
        self,
        features: Mapping[str, Any],
        classes: Sequence[Any] | None = None,
        target_bounds: tuple[Any, Any] | None = None,
        *,
        target: str = "target",
        ignore: Sequence[str] = (),
        max_weight: int = 1,
        unit_id: str | None = None,
        private: bool = True,
    ) -> None:
        given: Any = features  # despite the type hint, it may be anything that a file holds
        if not isinstance(given, Mapping) or not given:
            what = "is empty" if isinstance(given, Mapping) else f"is a {type(given).__name__}"
            raise SchemaError(
                f"features {what}. Give a dict that declares each column by its name, such as {{'age': (17, 90), 'job':"
                " ['office', 'field']}. Schema.draft(data) has the names."
            )
        self.features: dict[str, Feature] = {
            str(name): feature_of(str(name), spec) for name, spec in features.items()
        }
        if len(self.features) != len(features):
            raise SchemaError("Two features have the same name, once written as text. Rename one.")
        check_flag("private", private, SchemaError)
        self.private = private
        if private:  # of inferred facts, a column without a value has none
            for column, feature in self.features.items():
                if isinstance(feature, Categorical) and not feature.categories:
                    raise SchemaError(
                        f"feature {column!r} lists no categories: all its values would be 'other'. List them, or name"
                        " the column in 'ignore'."
                    )
        columns = {name: encoded_as(name, f) for name, f in self.features.items()}
        self.encoded: dict[str, Encoded] = {}
        for source, own in columns.items():
            if met := [column for column in own if column != source and column in self.features]:
                raise SchemaError(
                    f"feature {source!r} is encoded as a column {met[0]!r}, which is a feature too. Rename one of them."
                )
            self.encoded |= own
        if len(self.encoded) > MAX_FEATURES:
            raise SchemaError(
                f"The schema declares more than {MAX_FEATURES} features, of which a date is one for each of its parts:"
                " trees name a feature in 16 bits. List those that matter, and the others in 'ignore'."
            )
        self.sources = tuple(source for source, own in columns.items() for _ in own)
        self.target = target_of(target, classes, target_bounds)
        self.ignore = names_ignored(ignore)
        self.max_weight = _max_weight(max_weight)
        check_unit_id(unit_id)
        self.unit_id = unit_id
        _check_text(self)
        if unit_id is not None and unit_id == self.target.name:
            raise SchemaError(
                f"unit_id={unit_id!r} is also the target: all rows of one label would be one unit. Rename one of them."
            )
        for role, name in (
            ("target", self.target.name),
            ("unit_id", unit_id),
            *(("ignore", name) for name in self.ignore),
        ):
            if name in self.features:
                raise SchemaError(
                    f"{role}={name!r} is also a feature. Remove it from one of the two."
                )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features, in order."""
        return tuple(self.features)

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.features)

    @property
    def encoded_names(self) -> tuple[str, ...]:
        """Names of the encoded columns, in order."""
        return tuple(self.encoded)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form of docs/schema.md §2."""
        t = self.target
        target: dict[str, Any] = {"name": t.name, "type": t.type}
        target |= (
            {"low": t.low, "high": t.high}
            if t.type == "numeric"
            else {"classes": list(map(python_scalar, t.classes))}
        )
        out = {
            "version": VERSION,
            "features": {name: to_json(feature) for name, feature in self.features.items()},
            "target": target,
            "ignore": list(self.ignore),
        }
        out["max_weight"] = self.max_weight
        if self.unit_id is not None:
            out["unit_id"] = self.unit_id
        if not self.private:
            out["private"] = False
        return out

    @classmethod
    def from_dict(cls, data: Any) -> "Schema":
        """Build a schema from its JSON form (docs/schema.md §2).

        Parameters
        ----------
        data : mapping

        Raises
        ------
        SchemaError
            If anything is malformed, or of a newer version.
        """
        try:
            return cls._of(data)
        except RecursionError:
            raise SchemaError(TOO_DEEP) from None

    @classmethod
    def of_file(cls, data: Any) -> "Schema":
        """Build the schema of a model or a data set from its JSON form, as `from_dict` does.

        Of those that version 0.2 wrote, None may be a category. It matches no value, and keeps its place.

        Parameters
        ----------
        data : mapping

        Raises
        ------
        SchemaError
            As `from_dict`.
        """
        given = data.get("features") if isinstance(data, Mapping) else None
        features: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
        lists = {
            name: spec["categories"]
            for name, spec in features.items()
            if isinstance(spec, Mapping) and isinstance(spec.get("categories"), list)
        }
        held = {name: listed for name, listed in lists.items() if None in listed}
        if not held:
            return cls.from_dict(data)
        bare = {
            name: {**features[name], "categories": [one for one in listed if one is not None]}
            for name, listed in held.items()
        }
        schema = cls.from_dict({**data, "features": {**features, **bare}})
        for name, listed in held.items():
            kept = Categorical(tuple(listed), schema.features[name].missing)
            schema.features[name] = schema.encoded[name] = kept
        return schema

    @classmethod
    def _of(cls, data: Any) -> "Schema":
        if not isinstance(data, Mapping):
            raise SchemaError(
                f"A schema is a JSON object with 'features' and 'target', not {type(data).__name__}."
            )
        if is_draft(data):
            if found := open_facts(data):
                raise SchemaError(
                    f"The schema is a draft, and facts are open: {first_few(found, '; ')}. Fill them in from public"
                    " knowledge, not by looking at the data."
                )
            data = without_blanks(data)
        _check_form(data)
        features, target = data.get("features"), data.get("target")
        if not isinstance(features, Mapping) or not isinstance(target, Mapping):
            raise SchemaError("A schema needs 'features' and 'target', each a JSON object.")
        kind = target.get("type")
        if not isinstance(kind, str) or kind not in ("binary", "multiclass", "numeric"):
            raise SchemaError(
                f"target type={short(kind)} is unknown. Choose 'binary', 'multiclass' or 'numeric'."
            )
        fields = {"low", "high"} if kind == "numeric" else {"classes"}
        refuse_unknown(target, {"name", "type"} | fields, "the schema's target")
        refuse_quoted("the target", target)
        bounds = (target.get("low"), target.get("high")) if kind == "numeric" else None
        classes = target.get("classes") if kind != "numeric" else None
        if kind != "numeric" and not isinstance(classes, list | tuple):
            raise SchemaError("A classification target needs its list of 'classes'.")
        if not isinstance(name := target.get("name", "target"), str):
            raise SchemaError(f"name={short(name)} of the target must be text.")
        schema = cls(
            features,
            classes,
            bounds,
            target=name,
            ignore=data.get("ignore", ()),
            max_weight=data.get("max_weight", 1),
            unit_id=data.get("unit_id"),
            private=data.get("private", True),
        )
        if schema.target.type != kind:
            raise SchemaError(
                f"target type={kind!r} does not fit its {len(schema.target.classes)} classes."
            )
        return schema

    @spoken
    def save(self, path: str | Path) -> None:
        """Write the JSON form, which `load` reads.

        Parameters
        ----------
        path : str or Path
            A JSON file.

        Raises
        ------
        StructureError
            If the file cannot be written.
        """
        text = f"{json.dumps(self.to_dict(), indent=1)}\n"
        write_given(path, file_of(path), text.encode())

    @classmethod
    @spoken
    def load(cls, path: str | Path) -> "Schema":
        """Read a schema file.

        Parameters
        ----------
        path : str or Path
            A JSON file.

        Raises
        ------
        SchemaError
            If the file cannot be read, is malformed, or is a draft with open facts, which the error lists.
        """
        return cls.from_dict(cls.read_json(path))

    @staticmethod
    def read_json(path: str | Path) -> Any:
        """Read the JSON of a schema file, which may be a draft.

        Parameters
        ----------
        path : str or Path
            A JSON file.

        Raises
        ------
        SchemaError
            If the file cannot be read, or is no JSON.
        """
        place = file_of(path)
        try:
            text = place.read_text(encoding="utf-8-sig")  # Windows begins files with a mark
            data = json.loads(text, object_pairs_hook=json_object)
        except OSError as error:
            raise SchemaError(
                f"Schema file {str(path)!r} cannot be read: {error.strerror}."
            ) from error
        except RecursionError:
            raise SchemaError(f"Schema file {str(path)!r}: {TOO_DEEP}") from None
        except DPGBError as error:
            raise SchemaError(f"Schema file {str(path)!r}: {error}") from None
        except ValueError as error:
            raise SchemaError(
                f"Schema file {str(path)!r} is not JSON{where_json_breaks(error)}. JSON has double quotes, no comments,"
                " and no comma after the last of several."
            ) from None
        return data

    @classmethod
    @spoken
    def draft(
        cls,
        source: Any,
        *,
        target: str | None = None,
        unit_id: str | None = None,
        header: bool = False,
    ) -> Any:
        """Return the draft of a schema for data whose public facts are not written down yet.

        Parameters
        ----------
        source : any collection that ``fit`` takes, or an Arrow schema
            Of a Zarr store and of an Arrow schema, such as ``pyarrow.parquet.read_schema`` returns, the draft has names
            and types, which whoever wrote the file declared. Of NumPy, pandas, Dask and xarray it has names alone:
            their types come from values. No value and no statistic of values is read.
        target : str, optional
            Column to predict; it is then no feature.
        unit_id : str, optional
            Column that names a row's unit, such as a person; it is then no feature.
        header : bool
            Whether names that look like values are public names all the same. Otherwise they are refused where there
            are names alone, which may come from rows.

        Returns
        -------
        SchemaDraft
            With blanks, which ``fill`` or an editor fills in from public knowledge; no fit takes a draft with one.

        Raises
        ------
        SchemaError
            If ``target`` or ``unit_id`` is no column, or both are the same.
        StructureError
            If the source is nothing that ``fit`` takes, two columns have one name, or a name looks like a value.

        Privacy
        -------
        Reads names of columns, and the types that a file declares. Names are copied: those of a file without a header,
        and of a pivoted table, are values. Whoever publishes a draft checks them.
        """
        drafts = import_module("dpgb_dask.drafts")  # by its name, as below: it opens files
        return drafts.draft(source, target=target, unit_id=unit_id, header=header)

    @spoken
    def check(
        self,
        X: Any,  # noqa: N803 - scikit-learn's name
        y: Any = None,
        sample_weight: Any = None,
        columns: Any = None,
    ) -> Any:
        """Count exactly the values that a fit under this schema would clip, or read as missing or as "other".

        Parameters
        ----------
        X : collection of rows, as for ``fit``
        y, sample_weight : collections, optional
        columns : "position", list of str, optional
            The columns of an array without names, as for ``fit``.

        Returns
        -------
        Diagnosis
            It also holds the most frequent unknown values, and the columns that are not declared. It is for printing,
            and is stored nowhere.

        Privacy
        -------
        None: this is the data owner's own, plainly non-private look at the rows. No fit calls it.
        """
        # by its name, when it is asked for: it reads rows, and uses modules that import this one
        diagnose = import_module("dpgb_dask.diagnose")
        return diagnose.check(self, X, y, sample_weight, columns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self._text() == other._text()

    def __hash__(self) -> int:
        return hash(self._text())

    def _text(self) -> str:
        """Return all facts, with the order of the features, as an array is read by position."""
        return json.dumps(self.to_dict(), default=str)

    def __repr__(self) -> str:
        mark = "" if self.private else ", private=False"
        target = brief(self.target.name)
        return f"Schema({self.n_features} features, target={target!r}, type={self.target.type!r}{mark})"

    def _repr_html_(self) -> str:
        rows = [(name, in_words(feature)) for name, feature in self.features.items()]
        return html_table(repr(self), rows, ("feature", "declared"), widest=WORDS)


def _check_text(schema: Schema) -> None:
    """Refuse names and labels that cannot be written to a file: they hold half of a surrogate pair."""
    names = [*schema.names, schema.target.name, *schema.ignore, schema.unit_id]
    features = schema.features.values()
    listed = [f.categories for f in features if isinstance(f, Categorical)]
    listed += [pair for f in features if isinstance(f, Grouped) for pair in f.mapping]
    for part in itertools.chain(names, *listed, schema.target.classes):
        if isinstance(part, str) and not _encodes(part):
            raise SchemaError(
                f"{short(part)} of the schema holds half of a surrogate pair, which is no text. Write it in UTF-8."
            )


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def names_ignored(ignore: Any) -> tuple[str, ...]:
    """Return the names of ignored columns.

    Raises
    ------
    SchemaError
        If they are no list.
    """
    if isinstance(ignore, str | bytes | Mapping) or not is_listing(ignore):
        raise SchemaError(f"ignore={short(ignore)} must be a list of column names.")
    return tuple(str(name) for name in ignore)


def check_unit_id(unit_id: Any) -> None:
    """Refuse what names no column.

    Raises
    ------
    SchemaError
    """
    if unit_id is not None and not isinstance(unit_id, str):
        raise SchemaError(f"unit_id={short(unit_id)} must be the name of a column, or null.")


def column_name(name: Any) -> str:
    """Return the name of the target's column as text; a frame may have a number for it.

    Raises
    ------
    SchemaError
        If it is no name.
    """
    if not isinstance(name, str) and not is_number(name):
        raise SchemaError(f"target={short(name)} must be the name of a column.")
    return str(name)


def target_of(name: Any, classes: Any, bounds: Any) -> Target:
    """Return the target of this name, with these classes or bounds.

    Raises
    ------
    SchemaError
        If the name is none, or not exactly one of both is given, or it is malformed.
    """
    name = column_name(name)
    if (classes is None) == (bounds is None):
        raise SchemaError(
            "Give either classes=[…] (classification) or target_bounds=(low, high) (regression)."
        )
    if classes is not None:
        given = classes
        if not isinstance(given, Iterable):
            given = listed_values(given)  # a categorical type of pandas
        if isinstance(given, set | frozenset):  # of texts, its order is another in each process
            raise SchemaError(
                "classes is a set, and must be a list: its order is that of the model's scores."
            )
        table = getattr(given, "ndim", 1) != 1
        if table or isinstance(given, str | Mapping) or not isinstance(given, Iterable):
            raise SchemaError(f"classes={short(given)} must be a list of labels.")
        labels = tuple(given)
        if not 2 <= len(labels) <= MAX_CATEGORIES:
            raise SchemaError(
                f"classes must be 2 to {MAX_CATEGORIES} different labels, such as [0, 1]. Numbers to"
                " predict are declared by target_bounds=(low, high)."
            )
        if any(map(is_missing, labels)):
            raise SchemaError(
                "classes hold a missing value (null, None or NaN), and a missing label is none: its rows weigh nothing."
                " Give that class a label of its own."
            )
        check_labels("classes", classes, labels)
        return Target(name, "binary" if len(labels) == 2 else "multiclass", labels)
    pair = (
        ()
        if isinstance(bounds, Mapping | set | frozenset) or not is_listing(bounds)
        else tuple(bounds)
    )
    low, high = map(finite, pair) if len(pair) == 2 else (None, None)
    if low is None or high is None or low >= high:
        said = f"={short(bounds)}" if len(pair) == 2 else ""  # a longer one may be the targets
        raise SchemaError(
            f"target_bounds{said} must be two finite numbers, low below high, from public knowledge."
        )
    if high / 2 - low / 2 < sys.float_info.min:  # targets are scaled by it: it must not underflow
        raise SchemaError(
            "target_bounds are closer than floats can be scaled by. Give wider bounds."
        )
    return Target(name, "numeric", (), low, high)


def _check_form(data: Mapping[str, Any]) -> None:
    """Refuse what is no schema in its JSON form, is of a newer version, or has keys that a schema does not have."""
    if "format" in data and "schema" in data:
        raise SchemaError(
            "This is a model file, and no schema. Give the file of the schema; from a model,"
            " model.schema_.save('people.schema.json') writes it."
        )
    if not {"features", "target", "version"} & {*data}:
        raise SchemaError(
            "A schema in its JSON form needs 'features' and 'target', each a JSON object. Features alone do not say"
            " what to predict: give dpgb_dask.Schema(features, classes=[…]), or target_bounds=(low, high)."
        )
    version = data.get("version", VERSION)
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise SchemaError(f"version={short(version)} of the schema must be {VERSION}.")
    if version > VERSION:
        raise SchemaError(
            f"version={short(version)} is newer than {VERSION}: update dpgb_dask to read this schema."
        )
    known = {"version", "features", "target", "ignore", "max_weight", "unit_id", "private"}
    refuse_unknown(data, known, "the schema")


def _max_weight(value: Any) -> int:
    most = whole_number(value)
    if most is None or not 1 <= most <= MAX_WEIGHT:
        raise SchemaError(f"max_weight={short(value)} must be a whole number in [1, {MAX_WEIGHT}].")
    return most
