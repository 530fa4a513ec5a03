"""Mistakes of a first use: the error is ours, says what is wrong and what to do, and nothing is charged for it."""

import re

import dask.array as da
import numpy as np
import pandas as pd
import pytest

from dpgb_dask import (
    DPGBClassifier,
    DPGBError,
    DPGBRegressor,
    Grouped,
    Ledger,
    Schema,
    io,
    plot_budget,
    recipes,
    verify,
)

SCHEMA = Schema({"age": (17, 90), "job": ["office", "field"]}, classes=[0, 1], target="rich")
X = pd.DataFrame({"age": [20.0, 40.0, 60.0], "job": ["office", "field", "office"]})
Y = pd.Series([0, 1, 0], name="rich")
WIDTH = "another number of columns than the 2 features of the schema: .* Give exactly the declared columns."


@pytest.fixture
def ledger(tmp_path):
    """A ledger with one account."""
    ledger = Ledger(f"sqlite:///{tmp_path / 'budget.db'}")
    ledger.open_account("people", epsilon=3.0, delta=1e-6)
    return ledger


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"y": "rich"}, r"y is a str\. .* Give the column, not its name: table\['…'\]\."),
        ({"sample_weight": "w"}, r"sample_weight is a str\. .* Give the column, not its name: table\['…'\]\."),
        ({"X": "people.csv"}, r"X is a str\. .* Read the file first: .*"),
        (
            {"y": Y[:2]},
            r"X, y and sample_weight have different numbers of rows in a chunk\. Give each row one target, and one"
            r" weight or none; of Dask, take all of them from one table\.",
        ),
        ({"X": X.to_numpy()[:, :1]}, f"X has no column names and {WIDTH}"),
        ({"X": np.zeros((3, 0)), "columns": "position"}, f"X has no column names and {WIDTH}"),
        (
            {"columns": ["age", "job", "height"]},
            r"columns= does not match the schema\. It has names that the schema does not declare\. Name every feature;"
            r" .*",
        ),
        ({"columns": ["age"]}, r"columns= does not match the schema: missing=\['job'\]\. Name every feature; .*"),
        (
            {"X": X.to_numpy(), "columns": ["age", "job", "rich"]},
            r".* than the 3 that columns= names\. Name all columns of X there, in their order, and no others\.",
        ),
        (
            {"ledger": "sqlite:///budget.db"},
            r"ledger is a str\. Give a dpgb_dask\.Ledger, as in Ledger\('sqlite:///budget\.db'\)\.",
        ),
        (
            {"ledger": None, "account": None, "resume": "abc"},
            r"resume='abc' needs the ledger that the fit was charged to\. Give ledger and account\.",
        ),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("error")  # nor is a match by position warned of that is none
def test_a_fit_is_refused_with_a_way_out_and_costs_nothing(given, said, ledger):
    data = {"X": X, "y": Y, "sample_weight": None, "resume": None}
    asked = {"schema": SCHEMA, "ledger": ledger, "account": "people"} | given
    left = ledger.remaining("people")
    with pytest.raises(DPGBError) as caught:
        DPGBClassifier(**{name: asked[name] for name in asked if name not in data}).fit(
            **{name: asked.get(name, usual) for name, usual in data.items()}
        )
    assert re.fullmatch(said, str(caught.value))
    assert ledger.remaining("people") == left


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (X[["job"]], r"columns do not match the schema: missing=\['age'\]\. Rename or add columns\."),
        (
            X[["job"]].assign(height=1),
            r"columns do not match the schema: missing=\['age'\], not declared=\['height'\]\. Rename or add columns, or"
            r" list those to leave out in 'ignore'\.",
        ),
        (pd.DataFrame(index=range(3)), f"X has no column names and {WIDTH}"),
        (np.zeros((3, 0)), f"X has no column names and {WIDTH}"),
        (da.zeros((3, 0)), f"X has no column names and {WIDTH}"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("y", [None, Y], ids=["alone", "with y"])
@pytest.mark.parametrize("columns", [None, "position"])
def test_a_check_of_other_columns_says_which(rows, said, y, columns):
    """Without y a feature stands in for it, which may not be there."""
    with pytest.raises(DPGBError) as caught:
        SCHEMA.check(rows, y, columns=columns)
    assert re.fullmatch(said, str(caught.value))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that charged no ledger, and its file."""
    path = tmp_path_factory.mktemp("model") / "model.json"
    model = DPGBClassifier(schema=SCHEMA, recipe="dp-ebm", n_estimators=1, on_few_rows="continue")
    model.fit(X, Y).save(path)
    return model, path


WRITERS = {
    "schema": lambda _, path: SCHEMA.save(path),
    "draft": lambda _, path: Schema.draft(X).save(path),
    "model": lambda model, path: model.save(path),
    "python": lambda model, path: model.to_python(path),
    "sql": lambda model, path: model.to_sql(path),
    "xgboost": lambda model, path: model.to_xgboost(path),
}


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_a_file_that_cannot_be_written_says_what_to_do(writer, model, tmp_path):
    for path, said in (
        (tmp_path / "none" / "file", r"No such file or directory\. Make its folder first"),
        (tmp_path, r"Is a directory\. Name a file in it"),
    ):
        with pytest.raises(DPGBError) as caught:
            writer(model[0], path)
        assert re.fullmatch(
            rf"'{re.escape(str(path))}' cannot be written: {said}, or write it elsewhere\.",
            str(caught.value),
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["age,job\n20,office\n", "{}", ""])
@pytest.mark.parametrize("read", [DPGBClassifier.load, DPGBRegressor.load, verify])
def test_what_is_no_model_file_says_what_is(text, read, tmp_path):
    path = tmp_path / "other"
    path.write_text(text)
    with pytest.raises(
        DPGBError, match=r"\. Give a file that model\.save or dpgb-dask fit wrote\.$"
    ):
        read(path)


def test_an_address_is_no_ledger_anywhere(model):
    said = r"^ledger is a str\. Give a dpgb_dask\.Ledger, as in Ledger\('sqlite:///budget\.db'\)\.$"
    for call in (lambda: verify(model[1], "sqlite:///b.db"), lambda: plot_budget("sqlite:///b.db")):
        with pytest.raises(DPGBError, match=said):
            call()


def test_a_ledger_says_what_its_fit_was_never_charged_to(model, ledger):
    with pytest.raises(DPGBError, match=r"charged no ledger, .* Verify the file without one\.$"):
        verify(model[1], ledger)


def test_a_place_where_no_ledger_can_be_says_what_to_do(tmp_path):
    for place, said in (
        (tmp_path, r"It is a folder: name a file in it\."),
        (
            tmp_path / "none" / "b.db",
            rf"Its folder does not exist: make '{re.escape(str(tmp_path / 'none'))}' first\.",
        ),
    ):
        for use in (
            lambda ledger: ledger.open_account("a", epsilon=1, delta=1e-6),
            lambda ledger: ledger.account("a"),
        ):
            with pytest.raises(DPGBError, match=rf"\n.*{said}$"):
                use(Ledger(f"sqlite:///{place}"))


def test_two_slashes_before_a_file_are_one_too_few():
    with pytest.raises(DPGBError, match=r" Did you mean 'sqlite:///budget\.db'\?$"):
        Ledger("sqlite://budget.db")
    with pytest.raises(DPGBError, match=r"@host/db'\.$"):  # what may hold a password is not said
        Ledger("sqlite://me:secret@budget.db")


def test_facts_of_a_target_say_the_rule_and_hold_no_targets():
    given = {"age": (17, 90)}
    way_out = r" Numbers to predict are declared by target_bounds=\(low, high\)\."
    for classes in ([1], [], list(range(300)), Y[:1]):
        with pytest.raises(DPGBError, match=rf"^classes must .* such as \[0, 1\]\.{way_out}$"):
            Schema(given, classes=classes)
    with pytest.raises(DPGBError, match=r"^target_bounds=\(6, -6\) must be .*low below high, .*"):
        Schema(given, target_bounds=(6, -6))
    with pytest.raises(DPGBError, match=r"^target_bounds must be two finite numbers"):
        Schema(given, target_bounds=[4.75, 1.5, 3.0])


def test_a_draft_of_an_unknown_target_names_one_like_it():
    with pytest.raises(
        DPGBError, match=r"target='agee' is no column of the data\. Did you mean 'age'\?$"
    ):
        Schema.draft(X, target="agee")
    with pytest.raises(
        DPGBError, match=r"target='rich' is no column of the data\. Name one that is\.$"
    ):
        Schema.draft(X, target="rich")


def test_a_declaration_that_a_schema_refuses_can_still_be_shown():
    """The groups as keys, each with a list of values, is the other way round."""
    for mapping in ({"Berlin": ["10115", "10117"]}, ["Berlin"], 7):
        feature = Grouped(mapping)
        assert repr(feature).startswith("Grouped(")
        with pytest.raises(
            DPGBError, match=r"^feature 'zip': .*(give text|as in \{'10115': 'Berlin'\})"
        ):
            Schema({"zip": feature}, classes=[0, 1])


def test_a_data_set_for_its_rows_is_told_what_it_holds(tmp_path, model):
    io.write_dataset(tmp_path / "people.zarr", X, Y, schema=SCHEMA)
    data = io.open_dataset(tmp_path / "people.zarr")
    fresh = DPGBClassifier(schema=SCHEMA)
    for call in (lambda: model[0].predict(data), lambda: fresh.fit(data, data.y)):
        with pytest.raises(DPGBError, match=r" Give what it holds: data\.X\.$"):
            call()


def test_of_several_files_the_one_that_is_not_there_is_named(tmp_path):
    X.to_csv(tmp_path / "a.csv", index=False)
    for names in (["a.csv", "b.csv"], ["b.csv", "a.csv"], ["b.csv"]):
        with pytest.raises(DPGBError, match=r"^'[^']*b\.csv' does not exist\. Give a file of "):
            io.read_csv([tmp_path / name for name in names])
    with pytest.raises(DPGBError, match=r"^'[^']*c\*\.csv' does not exist\. Give a file of "):
        io.read_csv(tmp_path / "c*.csv")


def test_stages_that_are_no_tuple_are_refused():
    with pytest.raises(
        DPGBError, match=r"^stages of 'mine' is a Bins\. Give a tuple of stages, as in "
    ):
        recipes.Plan("mine", "me", recipes.Bins())
