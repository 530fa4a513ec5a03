"""Open facts of a draft of a schema: which there are, in its JSON form.

A blank is a text that begins with `FILL_IN` and says what is to be filled in. Blanks and the file that holds them are
public.
"""

from collections.abc import Mapping
from typing import Any

from dpgb_dask.contracts.features import PARTS

FILL_IN = "FILL IN"
# what a draft says of itself, at the top of its file
NOTICE = [
    "This is a draft: each text that begins with FILL IN is open, and no fit takes the schema before none is left.",
    "Fill them in from public knowledge (a law, a form, a code book), never by looking at the data.",
    "Names, and types where a file declares them, are the data's structure; nothing else was read. In a file of text,"
    " names are the first line: check that it is a header and not a person, and that no name comes from values.",
    f"Dates are read as parts: any of {', '.join(PARTS)}. Each part costs as much privacy as a feature."
    " Times with a zone count in UTC; for local days drop the zone first, in pandas by dt.tz_localize(None).",
    'If somebody may have several rows, add "unit_id": "COLUMN", the column whose values tell people apart; it is then'
    " no feature. Without it the promise is for one row, and not for all rows of a person.",
    "Remove columns that are no features; those that are in the data all the same go into 'ignore'.",
]
# facts that a feature needs, and those of a target, by type
FACTS = {
    "numeric": ("low", "high"),
    "categorical": ("categories",),
    "bool": (),
    "datetime": ("first", "last"),
    "grouped": ("from",),
    "hashed": ("buckets",),
}
TARGET_FACTS = {"binary": ("classes",), "multiclass": ("classes",), "numeric": ("low", "high")}


def is_blank(value: Any) -> bool:
    """Whether a value of a schema's JSON form stands for a fact that is open."""
    return isinstance(value, str) and value.startswith(FILL_IN)


def is_draft(data: Mapping[str, Any]) -> bool:
    """Whether the JSON form of a schema says that it is a draft, or has a blank."""
    parts = [data.get("target"), *_features(data).values()]
    given = [value for part in parts if isinstance(part, Mapping) for value in part.values()]
    return "draft" in data or any(map(is_blank, [*given, *parts]))


def open_facts(data: Mapping[str, Any]) -> list[str]:
    """Return what is open in the JSON form of a draft, in words, in the order of the file."""
    found = [
        (f"feature {str(name)!r}", _lacking(spec, FACTS)) for name, spec in _features(data).items()
    ]
    target = data.get("target")
    name = [] if isinstance(target, Mapping) and _is_given(target.get("name")) else ["name"]
    found.append(("target", name + _lacking(target, TARGET_FACTS)))
    return [f"{where}: {', '.join(facts)}" for where, facts in found if facts]


def without_blanks(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON form of a draft whose facts are all given, without its notice and without other types' blanks."""
    features = {name: _given(spec) for name, spec in _features(data).items()}
    rest = {key: value for key, value in data.items() if key != "draft"}
    return rest | {"features": features, "target": _given(data.get("target"))}


def _features(data: Mapping[str, Any]) -> Mapping[str, Any]:
    features = data.get("features")
    return features if isinstance(features, Mapping) else {}


def _lacking(spec: Any, facts: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the facts that a feature or a target lacks; the type comes first, as the others depend on it."""
    if is_blank(spec) or spec is None:
        return ["type"]
    kind = spec.get("type") if isinstance(spec, Mapping) else ""
    if not _is_given(kind):
        return ["type"]
    known = facts.get(kind, ()) if isinstance(kind, str) else ()
    return [fact for fact in known if not _is_given(spec.get(fact))]


def _is_given(value: Any) -> bool:
    return value is not None and not is_blank(value)


def _given(spec: Any) -> Any:
    if not isinstance(spec, Mapping):
        return spec
    return {key: value for key, value in spec.items() if not is_blank(value)}
