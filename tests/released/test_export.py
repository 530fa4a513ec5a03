"""A model file reads back to the same model, and a bad one is refused with a clear error."""

import errno
import json
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from helpers import raw_scores
from mutants import mutants

from dpgb_dask.contracts.model import (
    SHARE_ONE,
    BinShares,
    FeatureBins,
    NoiseBands,
    Splits,
    TreeEnsemble,
    no_trees,
)
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.errors import SchemaError, StructureError
from dpgb_dask.released import export
from dpgb_dask.released.export import (
    ModelFile,
    digests_of,
    fit_digest,
    load,
    model_to_dict,
    save,
)
from dpgb_dask.released.report import PrivacyReport


@pytest.fixture
def file(model, shares, bands, binary_schema, report):
    return ModelFile(
        estimator="DPGBClassifier",
        parameters={"epsilon": 1.0},
        schema=binary_schema,
        model=model,
        shares=shares,
        bands=bands,
        report=report,
    )


@pytest.fixture
def saved(file, tmp_path):
    path = tmp_path / "model.json"
    save(file, path)
    return path


def test_a_path_that_is_the_content_of_a_file_is_cut(saved):
    with pytest.raises(StructureError, match="cannot be read") as error:
        load(saved.read_text())
    assert len(str(error.value)) < 300


def test_file_reads_back_bit_for_bit(file, saved, rows, tmp_path):
    back = load(saved)
    assert back.schema == file.schema
    assert back.report == file.report
    assert back.parameters == file.parameters
    np.testing.assert_array_equal(
        raw_scores(back.model, back.schema, rows), raw_scores(file.model, file.schema, rows)
    )
    for got, want in zip(back.model.tables, file.model.tables, strict=True):
        assert got.dtype == want.dtype == np.int32
    again = tmp_path / "again.json"
    save(back, again)
    assert again.read_bytes() == saved.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.json", "model.json"]


def test_multiclass_model_reads_back(
    three_score_model, shares, no_bands, multiclass_schema, report, rows, tmp_path
):
    path = tmp_path / "m.json"
    save(
        ModelFile(
            estimator="DPGBClassifier",
            parameters={},
            schema=multiclass_schema,
            model=three_score_model,
            shares=shares,
            bands=no_bands,
            report=report,
        ),
        path,
    )
    back = load(path)
    np.testing.assert_array_equal(
        raw_scores(back.model, back.schema, rows),
        raw_scores(three_score_model, multiclass_schema, rows),
    )


def test_inferred_schema_stays_marked(file, tmp_path):
    schema = Schema(file.schema.features, classes=[0, 1], private=False)
    path = tmp_path / "m.json"
    save(replace(file, schema=schema), path)
    assert load(path).schema.private is False


def test_numpy_labels_are_written_as_plain_ones(file, tmp_path):
    features = dict(file.schema.features)
    schema = Schema(features, classes=[np.int64(0), np.int64(1)])
    path = tmp_path / "m.json"
    save(replace(file, schema=schema), path)
    assert load(path).schema.target.classes == (0, 1)


def with_labels(schema, *labels):
    """A schema whose labels were changed after it was checked."""
    out = Schema(schema.features, classes=["a", "b"])
    out.target = replace(out.target, classes=labels)
    return out


def test_labels_that_json_cannot_hold_are_refused_and_nothing_is_written(file, tmp_path):
    schema = with_labels(file.schema, b"a", b"b")
    path = tmp_path / "m.json"
    with pytest.raises(SchemaError, match="bytes"):
        save(replace(file, schema=schema), path)
    assert list(tmp_path.iterdir()) == []


def change(saved, edit, *, agree=True):
    """Edit a file; with ``agree``, as somebody does who then makes the digests agree."""
    data = json.loads(saved.read_text())
    edit(data)
    if agree:
        with suppress(KeyError, TypeError, ValueError, RecursionError):
            data["digests"] = export._digests(data)
    try:
        saved.write_text(json.dumps(data))
    except RecursionError:
        saved.write_text('{"format": ' + "[" * 100_000)


def as_version(version):
    """An edit that takes away what came with format 3; with format 2."""

    def edit(data):
        data["version"] = version
        for name in ("shares", "bands", "digests", "edits"):
            data.pop(name, None)
        for name in PrivacyReport.since_digests():
            data["report"].pop(name, None)
        if version == 1:
            data["model"].pop("link")
            for name in ("masks", "mask_of"):
                data["model"]["trees"].pop(name)
            for name in ("pure", "loss", "signal"):
                data["report"].pop(name)
            for receipt in data["report"]["receipts"]:
                receipt.pop("mechanism")

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d.pop("model"),
        lambda d: d.pop("schema"),
        lambda d: d.update(report=None),
        lambda d: d["report"].pop("epsilon"),
        lambda d: d["report"].update(unknown=1),
        lambda d: d["model"].update(intercept=[1.5]),
        lambda d: d["model"].update(intercept=[2**31]),
        lambda d: d["model"].update(intercept=[1, 2]),
        lambda d: d["model"]["bins"][0].update(edges=[3.0, 1.0]),
        lambda d: d["model"]["bins"].pop(),
        lambda d: d["model"]["tables"][0].pop(),
        lambda d: d["model"]["bins"][3].update(cell_to_bin=[0, 1, 2, 9, 3]),
        lambda d: d["model"]["pairs"][0].update(i=7),
        lambda d: d["model"]["pairs"][0].update(map_i=[0, 0, 1, 1, 2, 3]),
        lambda d: d["model"]["trees"].update(feature=[[0, 1, 9]] * 3),
        lambda d: d["model"]["trees"].update(depth=3),
        lambda d: d["model"]["trees"].update(depth=10**9),
        lambda d: d["model"]["trees"].update(depth=0, feature=[[]] * 3, threshold=[[]] * 3),
        lambda d: d["model"]["trees"].update(depth=True),
        lambda d: d["model"]["trees"].update(threshold=[[0, 1, 300]] * 3),
        lambda d: d["model"]["trees"].update(mask_of=[[0, 1, 3]] * 3),
        lambda d: d["model"]["trees"].update(mask_of=[[0, 1, -2]] * 3),
        lambda d: d["model"]["trees"].update(mask_of=[[0, 1, 2]] * 2),
        lambda d: d["model"]["trees"].update(masks=[[0, 256]] * 3),
        lambda d: d["model"]["trees"].update(masks=[[0, -1]] * 3),
        lambda d: d["model"]["trees"].update(masks=[[0, 1]] * 2),
        lambda d: d["model"]["trees"].update(masks=[[[0]], [[1]], [[2]]]),
        lambda d: d["model"].update(link="softmax"),
        lambda d: d["model"].update(link="no such link"),
        lambda d: d["model"].pop("link"),
        lambda d: d["model"]["trees"].update(value=d["model"]["trees"]["value"] * 2),
        lambda d: d["model"]["pairs"][0].update(table=[]),
        lambda d: d["schema"].update(features={}),
    ],
)
def test_malformed_files_are_refused(saved, edit):
    change(saved, edit)
    with pytest.raises(StructureError, match="malformed"):
        load(saved)


def test_newer_and_other_files_are_refused(saved, tmp_path):
    change(saved, lambda d: d.update(version=export.VERSION + 1))
    with pytest.raises(StructureError, match="newer"):
        load(saved)
    for version in (True, 0, -1, 2.0, "3", None, 10**400, [3]):
        change(saved, lambda d, v=version: d.update(version=v))
        with pytest.raises(StructureError, match="malformed: its version"):
            load(saved)
    change(saved, lambda d: d.update(format="a poem"))
    with pytest.raises(StructureError, match="not a model file"):
        load(saved)
    saved.write_text("{")
    with pytest.raises(StructureError, match="not JSON"):
        load(saved)
    with pytest.raises(StructureError, match="cannot be read"):
        load(tmp_path / "nowhere.json")


def test_file_holds_no_count(model):
    assert set(model_to_dict(model)) == {"intercept", "bins", "tables", "pairs", "trees", "link"}


def test_shares_read_back_and_are_no_counts(saved, file):
    back = load(saved).shares
    assert back.released == (True, False, True, True)
    for got, want in zip(back.weights, file.shares.weights, strict=True):
        np.testing.assert_array_equal(got, want)
        assert got.sum() == SHARE_ONE


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d["shares"].pop("released"),
        lambda d: d["shares"]["released"].__setitem__(0, 1),
        lambda d: d["shares"]["released"].append(True),
        lambda d: d["shares"]["weights"].pop(),
        lambda d: d["shares"]["weights"][0].__setitem__(0, -1),
        lambda d: d["shares"]["weights"][0].__setitem__(0, 0.5),
        lambda d: d["shares"]["weights"][0].append(0),
        lambda d: d["shares"]["weights"][0].__setitem__(0, d["shares"]["weights"][0][0] + 1),
        lambda d: d["shares"].update(weights=3),
        lambda d: d.update(shares=None),
    ],
)
def test_shares_that_do_not_fit_are_refused(saved, edit):
    change(saved, edit)
    with pytest.raises(StructureError, match=f"malformed|{ALTERED}"):
        load(saved)


def test_bands_read_back(saved, file, tmp_path):
    back = load(saved).bands
    parts = [(*told.mains, *told.pairs, told.leaves) for told in (back, file.bands)]
    for got, want in zip(*parts, strict=True):
        np.testing.assert_array_equal(got, want)
    path = tmp_path / "none.json"
    save(replace(file, bands=NoiseBands(why="not known")), path)
    assert load(path).bands.why == "not known"
    additive = replace(file.model, trees=no_trees())
    save(
        replace(
            file, model=additive, bands=replace(file.bands, leaves=np.empty((1, 0, 32), np.int64))
        ),
        path,
    )
    assert load(path).bands.leaves.size == 0


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d["bands"].pop("leaves"),
        lambda d: d["bands"].update(why=""),
        lambda d: d["bands"].update(why=3),
        lambda d: d["bands"]["mains"].pop(),
        lambda d: d["bands"]["mains"][0].pop(),
        lambda d: d["bands"]["mains"][0][0].__setitem__(0, -1),
        lambda d: d["bands"]["pairs"][0][0].pop(),
        lambda d: d["bands"]["leaves"][0].pop(),
        lambda d: d.update(bands=[]),
    ],
)
def test_bands_that_do_not_fit_are_refused(saved, edit):
    change(saved, edit)
    with pytest.raises(StructureError, match=f"malformed|{ALTERED}"):
        load(saved)


def without_masks(model):
    splits = model.trees.splits
    plain = Splits.plain(splits.feature, splits.threshold)
    return replace(model, trees=TreeEnsemble(plain, model.trees.value))


def test_files_of_version_1_are_read(file, tmp_path, rows):
    """They had no links and no masks: the link follows from the target."""
    old = replace(file, model=without_masks(file.model))
    path = tmp_path / "m.json"
    save(old, path)

    change(path, as_version(1), agree=False)
    back = load(path)
    assert back.model.link == "clipped_logit"
    assert not back.report.pure
    assert back.report.unverified
    assert back.shares.released == (False,) * 4
    np.testing.assert_array_equal(
        raw_scores(back.model, back.schema, rows), raw_scores(old.model, old.schema, rows)
    )


def test_masks_are_written_as_the_bins_sent_right(saved, file):
    trees = json.loads(saved.read_text())["model"]["trees"]
    assert trees["masks"] == [[0, 2], [1, 3], [3, 4, 5]]
    assert trees["mask_of"] == file.model.trees.splits.mask_of.tolist()


ALTERED = "digests do not agree with"


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda d: d["model"]["intercept"].__setitem__(0, 1), "model, fit"),
        (lambda d: d["model"]["bins"][0]["edges"].__setitem__(0, -1.0000000000000002), "model, fit"),
        (lambda d: d["shares"]["released"].__setitem__(0, False), "shares, fit"),
        (lambda d: d["bands"]["mains"][0][0].__setitem__(0, 1), "bands, fit"),
        (lambda d: d["schema"]["features"]["x"].update(high=3.5), "schema, fit"),
        (lambda d: d["report"].update(epsilon=0.5), "report"),
        (lambda d: d["report"].update(private=False), "report"),
        (lambda d: d["report"]["receipts"].pop(), "report, receipts, fit"),
        (lambda d: d["parameters"].update(epsilon=0.5), "parameters"),
        (lambda d: d.update(estimator="DPGBRegressor"), "parameters"),
        (lambda d: d["digests"].update(model="0" * 64), "model"),
        (lambda d: d["digests"].pop("fit"), "fit"),
        (lambda d: d.pop("digests"), "schema, model"),
        (lambda d: d.update(digests=None), "schema, model"),
        (lambda d: d["digests"].update(other="0"), "its parts"),
        (lambda d: d.update(comment="trust me"), "its parts"),
    ],
)  # fmt: skip
def test_a_changed_file_is_refused(saved, edit, named):
    change(saved, edit, agree=False)
    with pytest.raises(StructureError, match=f"{ALTERED} {named}"):
        load(saved)


@pytest.mark.parametrize("lacking", [["edits"], ["bands", "edits", "shares"]])
def test_a_file_from_before_its_format_was_complete_is_not_said_to_be_changed(saved, lacking):
    change(saved, lambda d: [d.pop(part) for part in lacking])
    with pytest.raises(StructureError, match=f"lacks {', '.join(lacking)}, which .* version 3 has"):
        load(saved)


def test_another_way_to_write_the_same_file_is_read(saved, file):
    """Digests are of the values, not of spaces and the order of keys."""
    data = json.loads(saved.read_text())
    turned = {name: data[name] for name in reversed(data)}
    text = json.dumps(turned, ensure_ascii=True, separators=(" ,", ":  "), indent=1)
    for whole in (text, text.replace("\n", "\r\n"), f"\ufeff{text}"):  # the mark of Windows
        saved.write_bytes(whole.encode())
        assert load(saved).report == file.report


@pytest.mark.parametrize("where", [["features"], ["features", "b", "from"]])
def test_a_file_in_which_a_tool_sorted_the_columns_is_refused(file, tmp_path, where):
    """It would be the model of other columns, or of other groups; digests of format 3 do not tell."""
    groups = {"from": {"2": "y", "1": "x"}}
    schema = Schema({"b": groups, "a": groups}, classes=[0, 1])
    bins = (FeatureBins(None, np.arange(4, dtype=np.uint8), 4),) * 2
    model = replace(
        file.model, bins=bins, tables=(np.zeros((4, 1), np.int32),) * 2, pairs=(), trees=no_trees()
    )
    shares, path = BinShares.of(bins, ()), tmp_path / "m.json"
    save(replace(file, schema=schema, model=model, shares=shares, bands=NoiseBands(why="-")), path)
    before = digests_of(load(path), version=3)

    def turn(data):
        *above, last = where
        part = data["schema"]
        for name in above:
            part = part[name]
        part[last] = dict(sorted(part[last].items()))

    change(path, turn, agree=False)
    with pytest.raises(StructureError, match=f"{ALTERED} schema, fit"):
        load(path)
    change(path, lambda data: data.update(version=3, digests=before), agree=False)
    assert load(path).schema.to_dict() == schema.to_dict()  # in the file's order


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_of_before_is_unverified_wherever_it_is_printed(file, tmp_path, version):
    path, again = tmp_path / "m.json", tmp_path / "again.json"
    save(replace(file, model=without_masks(file.model)), path)
    change(path, as_version(version), agree=False)
    back = load(path)
    for report in (back.report, load(_saved(back, again)).report):  # saving it does not verify it
        assert report.unverified
        assert "UNVERIFIED" in str(report)
        assert "UNVERIFIED" in report._repr_html_()
        assert "unverified" in repr(report)
    assert "UNVERIFIED" not in str(file.report)


def _saved(file, path):
    save(file, path)
    return path


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d.update(comment="old"),
        lambda d: (d.pop("digests"), d.pop("edits")),
        lambda d: d.update(digests=None),
    ],
)
def test_a_file_that_says_an_older_format_than_it_has_is_refused(saved, edit):
    change(saved, lambda d: (edit(d), d.update(version=2)), agree=False)
    with pytest.raises(StructureError, match="says version=2 and has what came with version 3"):
        load(saved)


def test_edits_that_are_not_known_are_refused(saved):
    change(saved, lambda d: d["edits"].append({"edit": "clamp", "feature": "x"}))
    with pytest.raises(StructureError, match="edits that this version does not know"):
        load(saved)


def test_the_digest_of_a_fit_is_that_of_its_file(saved, file):
    told = json.loads(saved.read_text())["digests"]["fit"]
    assert fit_digest(file) == fit_digest(load(saved)) == told
    assert (
        fit_digest(replace(file, report=replace(file.report, build={"machine": "other"}))) == told
    )
    for other in (
        {"model": replace(file.model, intercept=file.model.intercept + 1)},
        {"shares": BinShares.of(file.model.bins, ())},
        {"bands": NoiseBands(why="not known")},
        {"estimator": "DPGBRegressor"},
        {"parameters": {**file.parameters, "columns": ["b", "a"]}},
        {"parameters": {}},
        {"report": replace(file.report, receipts=file.report.receipts[1:])},
        {"report": replace(file.report, warnings=("a word",))},
        {"schema": Schema(file.schema.features, classes=[2, 3])},
    ):
        assert fit_digest(replace(file, **other)) != told
    unsaved = with_labels(file.schema, b"a", b"b")
    assert fit_digest(replace(file, schema=unsaved)) == ""


def test_keys_that_are_there_twice_are_refused(saved):
    text = saved.read_text().replace('"epsilon": 1.0', '"epsilon": 0.1, "epsilon": 1.0')
    saved.write_text(text)
    with pytest.raises(StructureError, match="not JSON"):
        load(saved)


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d["report"].update(epsilon="much"),
        lambda d: d["report"].update(epsilon=[1.0]),
        lambda d: d["report"].update(delta=True),
        lambda d: d["report"].update(private=1),
        lambda d: d["report"].update(private="no"),
        lambda d: d["report"].update(declared=1.5),
        lambda d: d["report"].update(charged=-1),
        lambda d: d["report"].update(charged=10**400),
        lambda d: d["report"].update(recipe=None),
        lambda d: d["report"].update(deviations="none"),
        lambda d: d["report"].update(assumptions=[3]),
        lambda d: d["report"].update(public=[]),
        lambda d: d["report"]["public"].update(deep=[[[[[[1]]]]]]),
        lambda d: d["report"]["receipts"][0].update(price="1"),
        lambda d: d["report"]["receipts"][0].update(position=-1),
        lambda d: d["report"].update(receipts={"a": 1}),
        lambda d: d["report"].update(draws=[["part", 0]]),
        lambda d: d["report"].update(build={"numpy": 2}),
        lambda d: d["report"].update(unverified=0),
        lambda d: d["report"].update(source="\ud800"),
        lambda d: d.update(parameters=[["epsilon", 1.0]]),
        lambda d: d.update(estimator=3),
    ],
)
def test_reports_of_other_types_are_refused(saved, edit):
    change(saved, edit)
    with pytest.raises(StructureError, match=f"malformed|{ALTERED}"):
        load(saved)


def test_a_mutant_is_read_or_refused_by_an_error_of_ours(saved, tmp_path):
    data = json.loads(saved.read_text())
    path = tmp_path / "mutant.json"
    read = refused = 0
    for mutant in mutants(data, 300):
        path.write_text("{}")
        saved.write_text(json.dumps(data))
        change(saved, lambda d, m=mutant: (d.clear(), d.update(m)))
        try:
            back = load(saved)
        except StructureError as error:
            assert len(str(error).encode()) < 1000  # noqa: PT017
            refused += 1
        else:
            read += 1
            save(back, path)
            for text in (str(back.report), repr(back.report), back.report._repr_html_()):
                text.encode()
    assert read > 10
    assert refused > 150


def test_more_masks_than_nodes_are_refused_at_once(saved):
    change(saved, lambda d: d["model"]["trees"].update(masks=[[]] * 10**4))
    with pytest.raises(StructureError, match="malformed") as caught:
        load(saved)
    assert str(caught.value.__cause__) == "more masks than nodes"


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"format": "dpgb_dask model", "model": ' * 30_000]
)
def test_deep_nesting_is_refused(saved, text):
    saved.write_text(text)
    with pytest.raises(StructureError, match="nested too deeply"):
        load(saved)


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_what_was_there_and_no_part(file, saved, step, monkeypatch):
    before = saved.read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        if step == "write":
            patch.setattr(Path, "open", lambda *_, **__: open("/dev/full", "wb"))  # noqa: SIM115
            patch.setattr(Path, "chmod", Mock())
        elif step == "fsync":
            patch.setattr(os, "fsync", full)
        else:
            patch.setattr(Path, "replace", full)
        with pytest.raises(StructureError, match=r"cannot be written: No space left on device\."):
            save(replace(file, parameters={"epsilon": 2.0}), saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["model.json"]


def test_a_file_and_its_name_are_synced(file, tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync

    def note(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    save(file, tmp_path / "m.json")
    part, folder = map(Path, synced)
    assert (part.parent, part.suffix, folder) == (tmp_path, ".part", tmp_path)
