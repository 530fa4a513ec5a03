"""`verify`: the ledger exposes a file that was changed, and the result names what could not be compared."""

import json
import os
import shutil
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from mutants import mutants
from thinned import thinned

from dpgb_dask import (
    DPGBClassifier,
    DPGBRegressor,
    Ledger,
    Schema,
    VerificationError,
    verification,
    verify,
)
from dpgb_dask.cli import main
from dpgb_dask.controller import accounting
from dpgb_dask.errors import DPGBError, LedgerError, StructureError
from dpgb_dask.estimators import load
from dpgb_dask.losses import Huber
from dpgb_dask.recipes import RECIPES
from dpgb_dask.released import export
from dpgb_dask.released.report import BESIDE, PrivacyReport
from dpgb_dask.released.statement import EVIDENCE
from dpgb_dask.testing import SeededNoise
from dpgb_dask.training import build as build_module
from dpgb_dask.training import fit as training

SCHEMA = Schema({"a": (0.0, 1.0), "b": (-4.0, 4.0)}, classes=[0, 1])
NUMERIC = Schema(SCHEMA.features, target_bounds=(0.0, 1.0))


def rows(n=800):
    rng = np.random.default_rng(3)
    table = pd.DataFrame({"a": rng.random(n), "b": rng.normal(0, 1, n)})
    return table, (table["a"] + table["b"] > 0.5).astype(int)


def ledger_of(folder):
    ledger = Ledger(f"sqlite:///{folder}/budget.db")
    ledger.open_account("people", epsilon=40.0, delta=1e-4)
    return ledger


def fitted(ledger, recipe="fdp-tr-newton", kind=DPGBClassifier, weight=None, **options):
    settings = {
        "epsilon": 4.0,
        "schema": NUMERIC if kind is DPGBRegressor else SCHEMA,
        "random_state": 0,
    }
    if recipe != "auto":
        settings |= {"recipe": recipe}
    settings["n_estimators"] = 2
    account = {} if ledger is None else {"ledger": ledger, "account": "people"}
    return kind(**(settings | account | options)).fit(*rows(), sample_weight=weight)


@pytest.fixture(scope="module")
def folder_of_a_fit(tmp_path_factory):
    """A folder with a ledger and the file of a fit that it charged."""
    folder = tmp_path_factory.mktemp("fit")
    fitted(ledger_of(folder)).save(folder / "model.json")
    return folder


@pytest.fixture
def copy(folder_of_a_fit, tmp_path):
    """A copy of that folder, which a test may change."""
    return Path(shutil.copytree(folder_of_a_fit, tmp_path, dirs_exist_ok=True))


@pytest.fixture
def saved(copy):
    return copy / "model.json"


@pytest.fixture
def ledger(copy):
    """A ledger that charged the fit of ``saved``."""
    return Ledger(f"sqlite:///{copy}/budget.db")


def change(path, edit):
    """Edit a file as somebody does who then makes the digests agree."""
    data = json.loads(path.read_text())
    edit(data)
    data["digests"] = export._digests(data)
    path.write_text(json.dumps(data))


def test_a_file_agrees_with_its_ledger(saved, ledger):
    before = ledger.history("people")
    alone, whole = verify(saved), verify(saved, ledger)
    assert "no ledger was given" in str(alone)
    assert "bit for bit" in str(whole)
    assert whole.open == ()
    assert len(whole.agreed) == 6
    for found in (alone, whole):
        assert EVIDENCE in str(found)
        assert repr(found) == str(found)
    assert ledger.history("people") == before  # it writes nothing


def test_a_model_that_is_not_private_is_verified_without_a_guarantee(classifier, tmp_path):
    classifier.save(tmp_path / "seeded.json")
    found = verify(tmp_path / "seeded.json")
    assert not found.private
    assert str(found).startswith("NOT PRIVATE: the noise is seeded")
    assert "no guarantee follows" in str(found)
    assert "ε, δ" not in str(found)


def test_changes_are_told_in_their_number(saved, copy):
    edited = load(saved).edit().clamp("a", high=0.0)
    edited.done().save(copy / "one.json")
    edited.clamp("a", low=0.0).done().save(copy / "two.json")
    assert "the change after the fit: repeated from its model; the file alone tells of it" in str(
        verify(copy / "one.json")
    )
    assert (
        "the 2 changes after the fit: repeated from its model; the file alone tells of them"
        in str(verify(copy / "two.json"))
    )


CASES = {
    "auto": {"recipe": "auto"},
    "weights": {"weight": np.full(800, 0.5), "schema": Schema(SCHEMA.features, classes=[0, 1], max_weight=3)},
    "regression": {"kind": DPGBRegressor, "recipe": "dp-ebm", "loss": Huber(0.3)},
    "pure": {"recipe": "dp-xgboost", "epsilon": 2.0},
    "pure in parts": {"recipe": "dpboost", "epsilon": 2.0, "n_estimators": 4},
    "depth": {"recipe": "fdp-hist-newton", "max_depth": 2, "max_bins": 8},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_fit_is_computed_again(case, ledger, tmp_path):
    path = tmp_path / "m.json"
    fitted(ledger, **CASES[case]).save(path)
    assert "bit for bit" in str(verify(path, ledger))
    again = tmp_path / "again.json"
    load(path).save(again)  # what was read is written the same
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.usefixtures("few_rows_are_few")
@pytest.mark.filterwarnings("ignore::dpgb_dask.FewRowsWarning")
def test_units_and_fits_that_ended_early_agree(ledger, tmp_path):
    path = tmp_path / "m.json"
    table, y = rows()
    schema = Schema(SCHEMA.features, classes=[0, 1], unit_id="who")
    options = {"ledger": ledger, "account": "people", "max_rows_per_unit": 2}
    table = table.assign(who=np.arange(800) // 2)
    for epsilon, ended_early in ((4.0, False), (0.01, True)):
        clf = DPGBClassifier(epsilon=epsilon, schema=schema, n_estimators=2, **options).fit(
            table, y
        )
        assert clf.privacy_report_.stopped == ended_early
        clf.save(path)
        assert "bit for bit" in str(verify(path, ledger))
    change(path, lambda d: d["report"].update(stopped=False))
    with pytest.raises(VerificationError, match=r"differ:\n  charge"):
        verify(path, ledger)


@pytest.mark.parametrize("recipe", thinned(sorted(RECIPES), every=3))
def test_claims_follow_of_every_recipe(recipe, tmp_path):
    """ε, δ and μ follow from the receipts, draws of rows included, at small and large ε."""
    kind = DPGBRegressor if "numeric" in RECIPES[recipe].kinds else DPGBClassifier
    for epsilon in (0.05, 3.0):
        options = {"epsilon": epsilon, "noise": SeededNoise(1), "on_few_rows": "continue"}
        if recipe == "dp-rf":
            options["n_estimators"] = 3
        fitted(None, recipe=recipe, kind=kind, **options).save(tmp_path / "m.json")
        assert load(tmp_path / "m.json").privacy_report_.epsilon == epsilon


def test_a_mutant_of_a_real_file_is_read_or_refused_by_an_error_of_ours(saved):
    data = json.loads(saved.read_text())
    read = refused = 0
    for mutant in mutants(data, 150, seed=1):
        saved.write_text("{}")
        with suppress(KeyError, TypeError, ValueError, RecursionError):
            mutant["digests"] = export._digests(mutant)
            saved.write_text(json.dumps(mutant))
        try:
            load(saved)
            read += 1
        except DPGBError:
            refused += 1
    assert refused > 100
    assert read + refused == 150


def fraction(name, factor):
    return lambda d: d["report"].update({name: d["report"][name] * factor})


FALSE_CLAIMS = {
    "a smaller epsilon": (fraction("epsilon", 0.9), "epsilon, delta or mu"),
    "a larger epsilon": (fraction("epsilon", 1.1), "epsilon, delta or mu"),
    "a smaller delta": (fraction("delta", 0.5), "epsilon, delta or mu"),
    "a delta of 1": (lambda d: d["report"].update(delta=1.0), "epsilon, delta or mu"),
    "a negative delta": (lambda d: d["report"].update(delta=-1e-6), "epsilon, delta or mu"),
    "a smaller mu": (fraction("mu", 0.5), "mu"),
    "another zCDP": (fraction("epsilon_zcdp", 0.5), "epsilon by zCDP"),
    "less spent": (lambda d: d["report"].update(charged=d["report"]["charged"] // 2), "charged"),
    "a receipt less": (lambda d: d["report"]["receipts"].pop(), "charged"),
    "a cheaper receipt": (lambda d: d["report"]["receipts"][0].update(price=1), "charged"),
    "a receipt of another fit": (lambda d: d["report"]["receipts"][0].update(fit_id="f"), "a receipt"),
    "a receipt twice": (
        lambda d: d["report"]["receipts"].append(d["report"]["receipts"][0]), "a receipt",
    ),
    "a mechanism of pure fits": (
        lambda d: d["report"]["receipts"][0].update(mechanism="laplace"), "a receipt",
    ),
    "purity": (lambda d: d["report"].update(pure=True), "a receipt"),
    "parts that were none": (
        lambda d: d["report"].update(
            draws=[["part", 0, k, k + 1] for k in range(len(d["report"]["receipts"]))]
        ),
        "charged",
    ),
    "draws that are none": (lambda d: d["report"].update(draws=[["part", 0, 1, 0]]), "a number"),
    "another unit": (lambda d: d["report"].update(unit="person"), "relation"),
    "a large slack": (lambda d: d["report"].update(slack=1.0), "slack"),
    "facts of the data": (lambda d: d["schema"].update(private=False), "private"),
}  # fmt: skip


@pytest.mark.parametrize("case", FALSE_CLAIMS)
def test_claims_that_do_not_follow_are_refused_even_if_digests_agree(saved, case):
    edit, named = FALSE_CLAIMS[case]
    change(saved, edit)
    with pytest.raises(StructureError, match=f"not that of a fit: {named} does not follow"):
        load(saved)


@pytest.fixture(scope="module")
def pure_file(tmp_path_factory):
    """The file of a fit of pure ε."""
    path = tmp_path_factory.mktemp("pure") / "model.json"
    fitted(None, "dpboost", noise=SeededNoise(0), on_few_rows="continue").save(path)
    return path


FALSE_PURE_CLAIMS = {
    "a smaller epsilon": (fraction("epsilon", 0.9), "epsilon"),
    "a larger epsilon": (fraction("epsilon", 1.1), "epsilon"),
    "a delta": (lambda d: d["report"].update(delta=1e-6), "delta"),
    "a smaller mu": (fraction("mu", 0.5), "mu"),
    "another zCDP": (fraction("epsilon_zcdp", 0.5), "epsilon by zCDP"),
    "less spent": (lambda d: d["report"].update(charged=d["report"]["charged"] // 2), "charged"),
    "a mechanism of other fits": (
        lambda d: d["report"]["receipts"][0].update(mechanism="gaussian"), "a receipt",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FALSE_PURE_CLAIMS)
def test_claims_of_pure_fits_that_do_not_follow_are_refused(case, pure_file, tmp_path):
    edit, named = FALSE_PURE_CLAIMS[case]
    saved = Path(shutil.copy(pure_file, tmp_path))
    load(saved)
    change(saved, edit)
    with pytest.raises(StructureError, match=f"not that of a fit: {named} does not follow"):
        load(saved)


def test_a_claim_of_less_needs_a_price_of_less(saved, ledger):
    """Whoever reckons all of it anew has a file that agrees with itself, and not with the ledger."""

    def cheaper(data):
        report = data["report"]
        report["epsilon"] = 1.0
        report["declared"] = accounting.total_price(1.0, report["delta"])
        scale = report["declared"] / sum(r["price"] for r in report["receipts"])
        for receipt in report["receipts"]:
            receipt["price"] = int(receipt["price"] * scale)
        report["charged"] = sum(r["price"] for r in report["receipts"])
        report["mu"] = accounting.mu_of_price(report["declared"])
        report["epsilon_zcdp"] = accounting.zcdp_epsilon(report["mu"], report["delta"])

    change(saved, cheaper)
    assert "no ledger was given" in str(verify(saved))
    with pytest.raises(
        VerificationError, match=r"differ:\n  epsilon: the file says 1.0, the ledger 4.0"
    ):
        verify(saved, ledger)


def turn(data):
    """Let the tables of each feature be those of another."""
    data["schema"]["features"] = dict(reversed(data["schema"]["features"].items()))


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d["model"]["intercept"].__setitem__(0, 7),
        lambda d: d["schema"]["features"]["a"].update(high=2.0),
        lambda d: d["report"]["receipts"][0].update(label="nothing"),
        turn,
        lambda d: (turn(d), d.update(version=3)),
    ],
)
def test_a_changed_model_shows_beside_its_ledger(saved, ledger, edit):
    change(saved, edit)
    verify(saved)
    with pytest.raises(VerificationError, match="names another digest"):
        verify(saved, ledger)


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d["parameters"].update(columns=["b", "a"]),  # how predict would read arrays
        lambda d: d["parameters"].update(columns="position"),
        lambda d: d["parameters"].update(epsilon=0.01),
        lambda d: d["parameters"].update(recipe="auto"),
        lambda d: d["parameters"].update(n_estimators=3),
        lambda d: d["parameters"].update(more=1),
        lambda d: d.update(parameters={}),
        lambda d: d.update(estimator="DPGBRegressor"),
    ],
)
def test_changed_parameters_show_beside_the_ledger(saved, ledger, edit):
    change(saved, edit)
    with pytest.raises(DPGBError, match=r"names another digest|its target is not"):
        verify(saved, ledger)


@pytest.mark.parametrize("name", sorted({f.name for f in fields(PrivacyReport)} - {*BESIDE}))
def test_no_field_of_the_report_can_be_changed_beside_the_ledger(name, saved, ledger):
    """Whatever a report will hold: a new field is tried here too."""
    report = json.loads(saved.read_text())["report"]
    kinds = {list: ["other words"], dict: {}, str: "other words", int: 1, bool: True, float: 1e-9}
    other = {type(None): "other words", **kinds}[type(report[name])]
    if name == "private":
        other = False
    elif name in ("public", "shares"):
        other = {"x": {"missing": [0.5, 0.1]}}
    elif name == "compared":
        other = {"pld": 0.0001}
    elif name == "build":
        other = {}
    assert other != report[name]
    change(saved, lambda d: d["report"].update({name: other}))
    with pytest.raises(DPGBError):
        verify(saved, ledger)


def test_a_single_word_of_the_report_shows_beside_the_ledger(saved, ledger):
    kept = saved.read_bytes()
    for edit in (
        lambda r: r["public"].update({"largest weight of a row": 1000}),
        lambda r: r["public"]["features"].update(z="in [0, 1]"),
        lambda r: r["deviations"].append("Everything is private."),
        lambda r: r["assumptions"].pop(),
        lambda r: r.update(slack=0.0),
        lambda r: r.update(mu=r["mu"] * (1 - 5e-10)),
        lambda r: r.update(epsilon_zcdp=r["epsilon_zcdp"] * (1 + 5e-7)),
    ):
        change(saved, lambda d, edit=edit: edit(d["report"]))
        verify(saved)  # the file alone cannot know
        with pytest.raises(VerificationError, match="names another digest"):
            verify(saved, ledger)
        saved.write_bytes(kept)


def test_what_is_saved_after_other_columns_were_set_is_not_the_fits(ledger, tmp_path):
    clf = fitted(ledger, columns="position")
    clf.set_params(epsilon=0.1, n_estimators=7).save(tmp_path / "m.json")
    assert "bit for bit" in str(verify(tmp_path / "m.json", ledger))
    clf.set_params(columns=["b", "a"]).save(tmp_path / "m.json")
    with pytest.raises(VerificationError, match=r"set_params\(columns"):
        verify(tmp_path / "m.json", ledger)


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda d: d["report"].update(account="others"), "account: the file says others"),
        (lambda d: d["report"]["public"].update({"seed of public randomness": 1}), "seed"),
        (lambda d: d["report"].update(version="9.9"), "version"),
        (lambda d: d["report"].update(private=False), "private"),
    ],
)
def test_other_terms_show_beside_the_ledger(saved, ledger, edit, named):
    change(saved, edit)
    with pytest.raises(VerificationError, match=rf"differ:\n  {named}"):
        verify(saved, ledger)


def test_a_ledger_that_was_changed_or_is_another_is_refused(saved, ledger, tmp_path):
    other = Ledger(f"sqlite:///{tmp_path}/other.db")
    other.open_account("people", epsilon=40.0, delta=1e-4)
    with pytest.raises(LedgerError, match="not in the ledger"):
        verify(saved, other)
    free = tmp_path / "free.json"
    fitted(None).save(free)
    assert "the fit charged none" in str(verify(free))
    with pytest.raises(VerificationError, match="charged no ledger"):
        verify(free, ledger)


def test_a_fit_of_before_format_4_is_verified(tmp_path, monkeypatch):
    ledger, path = ledger_of(tmp_path), tmp_path / "m.json"
    with monkeypatch.context() as patch:
        patch.setattr(training, "fit_digest", lambda file: export.fit_digest(file, version=3))
        fitted(ledger).save(path)
    change(path, lambda d: d.update(version=3))
    assert verify(path, ledger).open == ()
    load(path).save(path)
    assert verify(path, ledger).open == ()
    change(path, turn)  # which no digest of that time tells, but the journal does
    assert any("order of columns" in one for one in verify(path, ledger).open)


def test_a_file_of_before_is_not_verified(saved, ledger):
    data = json.loads(saved.read_text())
    data["version"] = 2
    del data["digests"], data["edits"], data["shares"], data["bands"]
    for name in export.PrivacyReport.since_digests():
        del data["report"][name]
    saved.write_text(json.dumps(data))
    assert load(saved).privacy_report_.unverified
    with pytest.raises(VerificationError, match="format without digests"):
        verify(saved, ledger)


def test_what_cannot_be_computed_again_is_said(saved, ledger, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(verification, "build", lambda: {"machine": "another"})
        assert "another build" in verify(saved, ledger).open[0]
    change(saved, lambda d: d["report"].update(build={"machine": "another"}))
    assert "another build than the file names" in verify(saved, ledger).open[0]
    change(saved, lambda d: d["report"].update(build={}))
    with pytest.raises(VerificationError, match="names no build"):
        verify(saved, ledger)
    change(saved, lambda d: d["report"].update(build=build_module.build()))
    assert verify(saved, ledger).open == ()
    mine = tmp_path / "mine.json"
    plan = replace(RECIPES["fdp-tr-newton"], name="a plan of mine")
    fitted(ledger, recipe=plan, n_estimators=None).save(mine)
    assert "cannot be made again" in verify(mine, ledger).open[0]
    journal = ledger.journal_path(load(saved).fit_id_)
    kept = journal.read_bytes()
    journal.write_bytes(kept[:-20])
    assert "not here whole" in verify(saved, ledger).open[0]
    journal.unlink()
    found = verify(saved, ledger)
    assert "journal is not here" in found.open[0]
    assert not journal.exists()
    assert "the digest alone was" in str(found)
    assert len(found.agreed) == 5


def test_another_model_from_the_journal_is_refused(saved, ledger, monkeypatch):
    """As where the code that computes it has changed, and says that it has not."""
    again = verification.replay

    def changed(**options):
        result = again(**options)
        return replace(result, model=replace(result.model, intercept=result.model.intercept + 1))

    monkeypatch.setattr(verification, "replay", changed)
    with pytest.raises(VerificationError, match="than the file holds: model"):
        verify(saved, ledger)


def test_other_shares_from_the_journal_are_refused(saved, ledger, monkeypatch):
    again = verification.replay

    def changed(**options):
        result = again(**options)
        return replace(result, shares=replace(result.shares, released=(True, True)))

    monkeypatch.setattr(verification, "replay", changed)
    with pytest.raises(VerificationError, match="than the file holds: shares"):
        verify(saved, ledger)


def test_the_build_is_named_and_holds_no_path():
    found = build_module.build()
    assert set(found) == {
        "machine",
        "python",
        "dpgb_dask",
        "numpy",
        "scipy",
        "numba",
        "blas",
        "simd",
    }
    assert found == build_module.build()
    assert os.sep not in "".join(found.values())


@pytest.mark.usefixtures("ledger")
def test_the_command_line_verifies(saved, tmp_path, capsys):
    url = f"sqlite:///{tmp_path}/budget.db"
    assert main(["verify", str(saved)]) == 0
    assert "not compared  the ledger" in capsys.readouterr().out
    assert main(["verify", str(saved), "--ledger", url]) == 0
    said = capsys.readouterr().out
    assert "bit for bit" in said
    assert "no signature" in said
    change(saved, lambda d: d["model"]["intercept"].__setitem__(0, 7))
    assert main(["verify", str(saved), "--ledger", url]) == 1
    assert "names another digest" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["verify", "--help"])
    assert "It is no signature" in capsys.readouterr().out


@pytest.mark.parametrize("kind", [KeyboardInterrupt, MemoryError])
def test_a_fit_that_breaks_off_after_its_end_says_how_to_get_its_model(ledger, monkeypatch, kind):
    clf = fitted(ledger)
    adopt = DPGBClassifier._adopt

    def fail(*_):
        raise kind

    monkeypatch.setattr(DPGBClassifier, "_adopt", fail)
    with pytest.raises(kind) as info:
        fitted(ledger)
    (note,) = info.value.__notes__
    assert "has ended" in note
    assert "settle" not in note
    left = ledger.remaining("people")
    fit_id = next(e.fit_id for e in ledger.history("people") if e.fit_id and e.fit_id in note)
    assert f"resume='{fit_id}'" in note
    assert f"--resume {fit_id}" in note
    monkeypatch.setattr(DPGBClassifier, "_adopt", adopt)
    again = DPGBClassifier(**clf.get_params()).fit(*rows(), resume=fit_id)
    assert again.fit_id_ == fit_id
    assert ledger.remaining("people") == left


def test_a_model_that_cannot_be_saved_names_its_fit(ledger, tmp_path):
    clf = fitted(ledger)
    for path in (tmp_path / "no folder" / "m.json", tmp_path):
        with pytest.raises(StructureError, match="cannot be written") as info:
            clf.save(path)
        (note,) = info.value.__notes__
        assert f"resume={clf.fit_id_!r}" in note
        assert "charged" in note
    with pytest.raises(StructureError) as info:
        fitted(None).save(tmp_path / "no folder" / "m.json")
    assert not getattr(info.value, "__notes__", None)
    again = DPGBClassifier(**clf.get_params()).fit(*rows(), resume=clf.fit_id_)
    again.save(tmp_path / "m.json")
    assert "bit for bit" in str(verify(tmp_path / "m.json", ledger))
