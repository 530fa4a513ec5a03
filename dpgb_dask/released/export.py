"""The model file: JSON with arrays as numbers. It holds released values only.

Since format 3 it contains digests of its parts, which are checked on load. They reveal a file that was damaged or
edited by hand. They are no signature: anyone who writes a file can compute matching digests. The digest ``fit`` covers
everything in the file except the build and later edits. The fit's entry in the ledger contains it, and
`dpgb_dask.verify` compares the file with that entry.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask import remote
from dpgb_dask.contracts.model import (
    MAX_BINS,
    BinShares,
    FeatureBins,
    Model,
    NoiseBands,
    PairTable,
    Splits,
    TreeEnsemble,
    check_bands,
    check_model,
    check_shares,
)
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.errors import SchemaError, StructureError, json_object, short, where_json_breaks
from dpgb_dask.kernels.route import MAX_DEPTH
from dpgb_dask.losses import LINKS_OF, from_json
from dpgb_dask.released.edit import directions_of_fit, known_edits, replayed
from dpgb_dask.released.report import PrivacyReport

FORMAT = "dpgb_dask model"
GIVE_MODEL = "Give a file that model.save or dpgb-dask fit wrote."
# format 1 had no links, and trees split by thresholds alone; format 2 had no digests; those of format 3 did not cover
# the order of the schema's features, and of the values of a mapping, which is that of the model's columns and groups
VERSION = 4
PARTS = {"format", "version", "estimator", "parameters", "schema", "model", "report"}
SINCE_3 = {"shares", "bands", "edits", "digests"}
LINK_BEFORE = {"binary": "clipped_logit", "multiclass": "softmax", "numeric": "identity"}
NO_BANDS_BEFORE = "the model file has a format without bands"


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelFile:
    """The content of a model file.

    Parameters
    ----------
    estimator : str
        Name of the class that was fitted; of a subclass, of the library's own.
    parameters : dict
        The plain parameters of the fit (JSON values).
    schema : Schema
    model : Model
    shares : BinShares
        Shares of the bins of ``model``.
    bands : NoiseBands
        Standard deviations of the noise in ``model``.
    report : PrivacyReport
    edits : tuple of dict
        Changes that were made to the model after the fit, in order (`released.edit`).
    edited : Model or None
        The model with these changes, which the file does not hold; None without changes.
    """

    estimator: str
    parameters: dict[str, Any]
    schema: Schema
    model: Model
    shares: BinShares
    bands: NoiseBands
    report: PrivacyReport
    edits: tuple[dict[str, Any], ...] = ()
    edited: Model | None = None


def save(file: ModelFile, path: str | Path) -> None:
    """Write a model file, completely or not at all; it is on disk, or in its object store, when the function returns.

    Raises
    ------
    SchemaError
        If a category or class label is not text, a number, true, false or null.
    StructureError
        If the file cannot be written. An incomplete file is removed.

    Privacy
    -------
    Released values only.
    """
    data = _to_dict(file)
    try:
        data["digests"] = _digests(data)
        text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False, default=_plain)
    except SchemaError:  # raised by _plain; it is also a ValueError
        raise
    except ValueError as error:
        raise SchemaError(
            "The model holds a number that JSON cannot hold (NaN or infinity), or half of a surrogate pair."
        ) from error
    remote.put(path, f"{text}\n")


def _to_dict(file: ModelFile) -> dict[str, Any]:
    """Return the JSON form of a file, without its digests."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "estimator": file.estimator,
        "parameters": file.parameters,
        "schema": file.schema.to_dict(),
        "model": model_to_dict(file.model),
        "shares": shares_to_dict(file.shares),
        "bands": bands_to_dict(file.bands),
        "report": file.report.to_dict(),
        "edits": list(file.edits),
    }


def fit_digest(file: ModelFile, version: int = VERSION) -> str:
    """Return the digest that the ledger's entry contains, of a format: 3 before there was 4.

    It covers the schema, the model, the shares of its bins, its bands, the whole report, the estimator's name and its
    parameters. The build is left out, because it differs if the fit is replayed from its journal on another machine.

    It is empty for a model whose labels JSON cannot hold: it cannot be saved, so there is never a file to compare.
    """
    return digests_of(file, version).get("fit", "")


def digests_of(file: ModelFile, version: int = VERSION) -> dict[str, str]:
    """Return the digests of a file's parts and of the fit; empty if JSON cannot hold the file."""
    try:
        return _digests(_to_dict(file) | {"version": version})
    except ValueError:  # SchemaError is one
        return {}


def _digests(data: dict[str, Any]) -> dict[str, str]:
    """Return the digests of a file's parts; raises ValueError if JSON or UTF-8 cannot hold one."""
    released: list[str] = [
        name for name in ("schema", "model", "shares", "bands", "report") if name in data
    ]
    receipts = _text(data["report"]["receipts"])  # thousands; written once for three digests
    report = {name: _text(value) for name, value in data["report"].items() if name != "receipts"}
    report["receipts"] = receipts
    ordered = data["version"] > 3
    texts = {
        name: _text(data[name], sort_keys=not (ordered and name == "schema"))
        for name in released
        if name != "report"
    }
    texts["report"] = _object(report)
    out: dict[str, str] = {name: _hash(texts[name]) for name in released}
    out["receipts"] = _hash(receipts)
    out["parameters"] = _hash(_text([data["estimator"], data["parameters"], data.get("edits", [])]))
    report.pop("build", None)
    parts = {name: out[name] for name in released} | {"report": _hash(_object(report))}
    parts |= {name: _hash(_text(data[name])) for name in ("estimator", "parameters")}
    out["fit"] = _hash(_text(parts))
    return out


def _text(part: Any, *, sort_keys: bool = True) -> str:
    """Return the canonical JSON text of a part: no spaces, and sorted keys unless their order counts.

    A float is written with the fewest digits that read back as the same float, so that reading and writing again
    changes nothing.
    """
    return json.dumps(
        part,
        sort_keys=sort_keys,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
        default=_plain,
    )


def _object(texts: dict[str, str]) -> str:
    """Return the canonical JSON text of an object whose values are written already."""
    return "{" + ",".join(f"{_text(name)}:{texts[name]}" for name in sorted(texts)) + "}"


def _hash(text: str) -> str:
    """Return the SHA-256 of a text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def load(path: str | Path) -> ModelFile:
    """Read a model file. A file of format 1 or 2 has no digests; its report says that it is unverified.

    Raises
    ------
    StructureError
        If the file cannot be read, is malformed, was written by a newer version, or does not match its digests.
    """
    raw = _read(path)
    try:
        data = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=json_object)
    except RecursionError:
        raise StructureError(
            f"Model file {str(path)!r} is malformed: it is nested too deeply."
        ) from None
    except ValueError as error:
        raise StructureError(
            f"Model file {str(path)!r} is not JSON{where_json_breaks(error)}. {GIVE_MODEL}"
        ) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise StructureError(
            f"{str(path)!r} is not a model file of this library: its 'format' is not {FORMAT!r}. {GIVE_MODEL}"
        )
    version: Any = data.get("version")
    whole = isinstance(version, int) and not isinstance(version, bool)
    if whole and VERSION < version < 1 << 31:
        raise StructureError(
            f"version={version} is newer than {VERSION}: update dpgb_dask to read this model."
        )
    if not whole or not 1 <= version <= VERSION:
        raise StructureError(
            f"Model file {str(path)!r} is malformed: its version is not one of 1 to {VERSION}."
        )
    try:
        altered = _how_altered(data, path)
        file = None if altered else _file_of(data, version)
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        IndexError,
        OverflowError,
        RecursionError,
    ) as error:
        raise StructureError(
            f"Model file {str(path)!r} is malformed. Save the model again."
        ) from error
    if file is None:
        raise StructureError(altered)
    return file


def _read(path: str | Path) -> bytes:
    """Return the content of a local file, or of one at a URL."""
    place = remote.place_of(path)
    if isinstance(place, str):
        return remote.read(place)
    try:
        return place.read_bytes()
    except OSError as error:
        raise StructureError(
            f"Model file {short(str(path))} cannot be read: {error.strerror}."
        ) from error


def _file_of(data: dict[str, Any], version: int) -> ModelFile:
    """Return the content of a file's JSON; raises what its parts raise if one is malformed."""
    schema = Schema.of_file(data["schema"])
    link = LINK_BEFORE[schema.target.type] if version < 2 else data["model"]["link"]
    model = model_from_dict(data["model"], link)
    _check_fit_together(schema, model)
    shares = BinShares.of(model.bins, ()) if version < 3 else shares_from_dict(data["shares"])
    check_shares(shares, model.bins)
    bands = NoiseBands(why=NO_BANDS_BEFORE) if version < 3 else bands_from_dict(data["bands"])
    check_bands(bands, model)
    report = PrivacyReport.from_dict(data["report"])
    if not isinstance(data["parameters"], dict) or not isinstance(data["estimator"], str):
        raise TypeError("parameters and estimator")
    edits = tuple(data.get("edits", []))
    edited = None
    if edits:
        kept = directions_of_fit(report.public, schema)
        edited = replayed(model, schema, shares, edits, kept)
    return ModelFile(
        estimator=data["estimator"],
        parameters=data["parameters"],
        schema=schema,
        model=model,
        shares=shares,
        bands=bands,
        report=replace(report, unverified=report.unverified or version < 3),
        edits=edits,
        edited=edited,
    )


def _how_altered(data: dict[str, Any], path: str | Path) -> str:
    """Say how a file differs from what was written; older formats have no digests, and none of what is checked here.

    Returns
    -------
    str
        Whether a part is missing, a digest is wrong, missing or unknown, an edit is unknown, or the file states an
        older format than it has. "" if none of these applies.
    """
    found = _digests(data)  # for older formats too, as this refuses what is no text
    unknown = set(data) - PARTS - SINCE_3
    if data["version"] < 3:
        if unknown or SINCE_3 & set(data) or PrivacyReport.since_digests() & set(data["report"]):
            return (
                f"Model file {str(path)!r} says version={data['version']} and has what came with version 3: it was"
                " changed after it was written. Take the file as it was written."
            )
        return ""
    lacking = sorted(SINCE_3 - {"digests"} - set(data))
    if lacking and "digests" in data:
        return (
            f"Model file {str(path)!r} lacks {', '.join(lacking)}, which every file of version 3 has: it was written"
            " before that version was complete, or these parts were removed. Fit again, or take the file as it was"
            " written; a fit in a ledger gives its model again with resume=, in a file that its ledger need not name."
        )
    if unknown or set(data) != PARTS | SINCE_3 or data["digests"] != found:
        told = data.get("digests")
        wrong = [
            name for name in found if not isinstance(told, dict) or told.get(name) != found[name]
        ]
        return (
            f"Model file {str(path)!r} was changed after it was written, or is damaged: its digests do not agree with"
            f" {', '.join(wrong) or 'its parts'}. Take the file as it was written; a fit in a ledger gives its model"
            " again with resume=."
        )
    if not known_edits(data["edits"]):
        return f"Model file {str(path)!r} holds edits that this version does not know: update dpgb_dask to read it."
    return ""


def loss_of_json(data: Any, path: str | Path) -> Any:
    """Return the loss that a model file names.

    Raises
    ------
    StructureError
        If it is no loss.
    """
    try:
        return from_json(data)
    except (KeyError, TypeError, ValueError) as error:
        raise StructureError(f"Model file {str(path)!r} is malformed: its loss.") from error


def _plain(value: Any) -> Any:
    """Convert a NumPy scalar to the equivalent Python number or text."""
    if isinstance(value, np.generic):
        return value.item()
    raise SchemaError(
        f"A label of type {type(value).__name__} cannot be written to JSON. Use text, numbers or booleans."
    )


def model_to_dict(model: Model) -> dict[str, Any]:
    """Return the JSON form of a model: lists of numbers."""
    bins = [
        {"edges": b.edges.tolist()}
        if b.edges is not None
        else {"cell_to_bin": _list(b.cell_to_bin), "n_bins": b.n_bins}
        for b in model.bins
    ]
    pairs = [
        {
            "i": p.i,
            "j": p.j,
            "map_i": _list(p.map_i),
            "map_j": _list(p.map_j),
            "table": _list(p.table),
        }
        for p in model.pairs
    ]
    splits = model.trees.splits
    trees = {
        "depth": splits.depth,
        "feature": _list(splits.feature),
        "threshold": _list(splits.threshold),
        "mask_of": _list(splits.mask_of),
        # the bins that each mask sends right
        "masks": [np.flatnonzero(mask).tolist() for mask in splits.masks],
        "value": _list(model.trees.value),
    }
    return {
        "intercept": _list(model.intercept),
        "bins": bins,
        "tables": [_list(table) for table in model.tables],
        "pairs": pairs,
        "trees": trees,
        "link": model.link,
    }


def shares_to_dict(shares: BinShares) -> dict[str, Any]:
    """Return the JSON form of shares: whole numbers, in steps of 2⁻²⁰ of the weight of all rows."""
    return {"weights": [_list(part) for part in shares.weights], "released": list(shares.released)}


def shares_from_dict(data: dict[str, Any]) -> BinShares:
    """Build shares from their JSON form; raises ValueError, KeyError or TypeError on anything malformed."""
    weights = tuple(_array(part, np.int64, 1) for part in data["weights"])
    return BinShares(weights, tuple(data["released"]))


def bands_to_dict(bands: NoiseBands) -> dict[str, Any]:
    """Return the JSON form of bands: whole numbers of score steps, or why there are none."""
    if bands.why:
        return {"why": bands.why}
    return {
        "mains": [_list(sd) for sd in bands.mains],
        "pairs": [_list(sd) for sd in bands.pairs],
        "leaves": _list(bands.leaves),
    }


def bands_from_dict(data: dict[str, Any]) -> NoiseBands:
    """Build bands from their JSON form; raises ValueError, KeyError or TypeError on anything malformed."""
    if "why" in data:
        if not isinstance(data["why"], str) or not data["why"]:
            raise ValueError("why")
        return NoiseBands(why=data["why"])
    n_scores, n_trees = len(data["leaves"]), len(data["leaves"][0])
    leaves = (
        _array(data["leaves"], np.int64, 3) if n_trees else np.empty((n_scores, 0, 0), np.int64)
    )
    return NoiseBands(
        mains=tuple(_array(sd, np.int64, 2) for sd in data["mains"]),
        pairs=tuple(_array(sd, np.int64, 3) for sd in data["pairs"]),
        leaves=leaves,
    )


def _list(array: NDArray[Any] | None) -> Any:
    return None if array is None else array.tolist()


def model_from_dict(data: dict[str, Any], link: str) -> Model:
    """Build a model from its JSON form; raises ValueError, KeyError or TypeError on anything malformed.

    Trees without masks, as version 1 wrote them, split by thresholds alone.
    """
    bins = []
    for item in data["bins"]:
        if "edges" in item:
            edges = np.asarray(item["edges"], np.float64).reshape(-1)
            bins.append(FeatureBins(edges, None, len(edges) + 2))
        else:
            bins.append(
                FeatureBins(None, _array(item["cell_to_bin"], np.uint8, 1), int(item["n_bins"]))
            )
    pairs = tuple(
        PairTable(
            int(p["i"]),
            int(p["j"]),
            _array(p["map_i"], np.uint8, 1),
            _array(p["map_j"], np.uint8, 1),
            _array(p["table"], np.int32, 3),
        )
        for p in data["pairs"]
    )
    tables = tuple(_array(table, np.int32, 2) for table in data["tables"])
    return Model(
        tuple(bins),
        _array(data["intercept"], np.int32, 1),
        tables,
        pairs,
        _trees(data["trees"]),
        str(link),
    )


def _trees(data: dict[str, Any]) -> TreeEnsemble:
    depth = data["depth"]
    if isinstance(depth, bool) or not isinstance(depth, int) or not 1 <= depth <= MAX_DEPTH:
        raise ValueError("depth out of range")
    nodes = (1 << depth) - 1
    feature = _array(data["feature"], np.uint16, 2, nodes)
    threshold = _array(data["threshold"], np.uint8, 2, nodes)
    value = _array(data["value"], np.int32, 3, nodes + 1)
    if "masks" not in data:
        return TreeEnsemble(Splits.plain(feature, threshold), value)
    mask_of = _array(data["mask_of"], np.int32, 2, nodes)
    # each node has at most one mask; more of them would cost memory
    if len(data["masks"]) > mask_of.size:
        raise ValueError("more masks than nodes")
    masks = np.zeros((len(data["masks"]), MAX_BINS), np.uint8)
    for mask, right in zip(masks, data["masks"], strict=True):
        mask[_array(right, np.uint8, 1)] = 1
    return TreeEnsemble(Splits(feature, threshold, mask_of, masks), value)


def _array(
    values: Any, dtype: type[np.integer[Any]], ndim: int, width: int | None = None
) -> NDArray[Any]:
    """Return an integer array; refuses fractions, values that do not fit the dtype, and other shapes."""
    wide = np.asarray(values)
    if wide.size == 0:  # a list without rows does not have their width
        outer = wide.shape[: ndim - 2] if ndim > 1 else ()
        wide = np.empty((*outer, 0) if ndim == 1 else (*outer, 0, width or 0), np.int64)
    limits = np.iinfo(dtype)
    inside = (
        wide.dtype.kind in "iu" and wide.ndim == ndim and (width is None or wide.shape[-1] == width)
    )
    if not inside or (wide.size and not (limits.min <= wide.min() and wide.max() <= limits.max)):
        raise ValueError("array of another shape or type")
    return wide.astype(dtype)


def _check_fit_together(schema: Schema, model: Model) -> None:
    """Raise ValueError unless every index in the model is in range.

    Kernels do not check bounds, so a file that was tampered with must be refused here.
    """
    check_model(model, schema)
    if model.link not in LINKS_OF[schema.target.type]:
        raise ValueError("parts that do not fit together")
