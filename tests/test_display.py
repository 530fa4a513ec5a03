"""Objects show themselves on one screen, however large they are; what comes from outside is escaped."""

import html
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dpgb_dask import DPGBClassifier, Ledger, Schema
from dpgb_dask.contracts.model import BinShares, FeatureBins, Model, PairTable
from dpgb_dask.controller.ledger_book import Account, Entry, Record, Terms
from dpgb_dask.display import (
    MOST,
    Listing,
    apart,
    brief,
    exact,
    floored,
    html_table,
)
from dpgb_dask.errors import LedgerError
from dpgb_dask.released.edit import Editor
from dpgb_dask.released.explain import LocalExplanation, explain_global
from dpgb_dask.training.cost import PrivacyCost

LONG = "<script>" + 190 * "x"


def test_what_another_role_wrote_commands_no_terminal():
    """An analyst's words are what the owner and an auditor see."""
    words = "\x1b[2J\r\n1 fit \x9b\u202e\xad\u2063\U000e0041" + 10**6 * "x"
    terms = Terms(
        epsilon=1.0, delta=0.0, price=1, min_sigma_bits=1, tau=0.0, plan_digest="", version="", public_seed=0,
        commitment="", facts={"recipe": words}, who=words,
    )  # fmt: skip
    record = Record("f", "a", "RELEASED", terms, 1, "", words, "2026-11-22T00:00:00", "eve")
    entry = Entry(1, "RESERVED", "a", "f", "2026-11-22T00:00:00", {"who": words, "model": words})
    for shown in (record.shown(), entry.shown()):
        for cell in map(str, shown.values()):
            assert cell.isprintable()
            assert len(cell) < 200


def test_floored_never_tells_more_than_there_is():
    values = [2.52609999, 0.6, 1.0, 0.0, 1e-7, 123456.7, 9.9999999, np.float64(1 / 3), 2 / 3]
    assert [floored(value, 4) for value in values] == [
        "2.526", "0.6", "1", "0", "1e-07", "1.234e+05", "9.999", "0.3333", "0.6666",
    ]  # fmt: skip
    drawn = np.random.default_rng(0).uniform(0, 50, 300)
    for digits in (3, 4, 6):
        for value in drawn:
            assert 0 <= value - float(floored(value, digits)) <= value * 10.0 ** (1 - digits)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"), (1e-6, "1e-06"), (1e9 + 100, "1000000100"), (20200615, "20200615"), (-3.0, "-3"),
        (0.1 + 0.2, "0.30000000000000004"), (1.0000004, "1.0000004"), (2.0**80, "1.2089258196146292e+24"),
        (1.7e308, "1.7e+308"), (1.5e6, "1.5e+06"), (12345678.75, "12345678.75"), (-1e308, "-1e+308"),
    ],
)  # fmt: skip
def test_what_is_stated_exactly_reads_back_as_the_same(value, text):
    assert exact(value) == text
    assert float(text) == value


def test_what_a_person_asked_for_is_stated_in_all_its_digits(tmp_path):
    epsilon, delta = 1.00000075, 1.00000025e-06
    ledger = Ledger(f"sqlite:///{tmp_path}/budget.db")
    ledger.open_account("people", epsilon=epsilon, delta=delta)
    with pytest.raises(LedgerError) as error:
        ledger.open_account("people", epsilon=1.0, delta=delta)
    cost = PrivacyCost(epsilon, delta, 0.2, 1.1)
    for text in (str(error.value), repr(ledger.accounts()), str(cost), cost._repr_html_()):
        assert str(epsilon) in text
        assert str(delta) in text


@pytest.mark.parametrize(
    ("share", "told"),
    [(0.256, "25.6 % of what is left"), (1.0, "100.0 % of what is left"),
     (1.0001, "more than is left"), (3e14, "more than is left"), (float("inf"), "more than is left")],
)  # fmt: skip
def test_a_price_beyond_what_is_left_is_no_share_of_it(share, told):
    cost = PrivacyCost(1.0, 1e-6, 0.2, 1.1, "people", share)
    assert str(cost).endswith(f": {told} in account 'people'")
    assert f">{told}</td>" in cost._repr_html_()


def test_numbers_are_told_apart_in_as_few_digits_as_do():
    assert apart([0, 1 / 3, 1]) == ["0", "0.333333", "1"]
    assert apart([1e9, 1e9 + 50.25, 1e9 + 100, 1e9]) == [
        "1e+09",
        "1000000050",
        "1000000100",
        "1e+09",
    ]
    assert apart([0, 0.001, 0.0021, 123456.789, 2e6], least=4) == [
        "0",
        "0.001",
        "0.0021",
        "1.235e+05",
        "2e+06",
    ]
    close = [1.0, np.nextafter(1, 2).item()]
    assert len(set(apart(close))) == 2


FOREIGN = "a\x1b[31m\nb\u202ec\u200ed"


def test_foreign_names_command_no_terminal():
    """Names of columns and of accounts are foreign text, as labels and values of rows are."""
    ledger = Ledger("sqlite://")
    ledger.open_account(FOREIGN, epsilon=1.0, delta=1e-6)
    schema = Schema({FOREIGN: (0, 4)}, classes=["no", FOREIGN], target=f"{FOREIGN}e")
    fitted = DPGBClassifier(schema=schema, epsilon=9.0, recipe="additive", columns="position")
    X = np.arange(600.0).reshape(-1, 1) % 5
    fitted.fit(X, np.where(X[:, 0] > 2, FOREIGN, "no"))
    terms, rows = fitted.explain_global(), fitted.explain_local(X[:3])
    shown = [
        schema,
        fitted,
        terms,
        terms.terms[0],
        rows,
        ledger.accounts(),
        ledger.account(FOREIGN),
    ]
    shown += [fitted.privacy_report_]
    for text in [
        *map(repr, shown),
        str(fitted.privacy_report_),
        *(one._repr_html_() for one in shown),
    ]:
        assert not set(FOREIGN) & set("\x1b\u202e\u200e") & set(text)
    for text in map(repr, (terms, rows, *ledger.accounts())):
        assert "a�[31m�b�c�d" in text
    pages = [one._repr_html_() for one in shown if one is not fitted]
    for page in (*pages, fitted._repr_mimebundle_()["text/html"]):
        assert re.match(
            '(<style>[^<]*</style>)?<div class="[^"]*tex2jax_ignore mathjax_ignore">', page
        )


def test_a_term_shows_as_a_table():
    fitted = DPGBClassifier(
        schema=Schema({"x": (0, 4), "job": ["<b>", "b"]}, classes=[0, 1]),
        epsilon=9.0,
        recipe="additive",
    )
    X = pd.DataFrame({"x": np.arange(600.0) % 5, "job": 300 * ["<b>", "b"]})
    term = fitted.fit(X, X["x"] > 2).explain_global().term("job")
    size = f"mean |score| {term.importance:.4g}, in score of class 1"
    assert repr(term) == f"Term('job', main, 4 positions; {size})"
    assert f"{size}, private=False" in replace(term, private=False)._repr_html_()
    rows = re.findall("<tr>(.*?)</tr>", term._repr_html_())
    cells = [re.findall("<t[dh][^>]*>(.*?)</t[dh]>", row) for row in rows]
    assert cells[0] == ["job", "share of rows", "score", "90 % band, from", "to"]
    assert [row[0] for row in cells[1:]] == ["&lt;b&gt;", "b", "other", "missing"]
    for k, row in enumerate(cells[1:]):
        sizes = (term.scores[k], term.lower[k], term.upper[k])
        assert row[1:] == [f"{100 * term.bins[0].weights[k]:.3g} %", *(f"{s:+.3g}" for s in sizes)]


def test_no_part_of_a_model_prints_its_arrays():
    schema = Schema({"x": (0, 4)}, classes=[0, 1])
    X = pd.DataFrame({"x": np.arange(600.0) % 5})
    model = DPGBClassifier(schema=schema, epsilon=9.0, recipe="additive").fit(X, X["x"] > 2)
    terms = model.explain_global()
    parts = {name: getattr(model, name) for name in dir(model) if re.fullmatch("[a-z].*_", name)}
    parts |= {"explanation": terms, "terms": terms.terms, "bins": terms.terms[0].bins}
    parts |= {"editor": model.edit(), "explained rows": model.explain_local(X)}
    assert {"model_", "bands_", "bin_shares_"} <= parts.keys()
    for name, part in parts.items():
        assert isinstance(part, np.ndarray) or "array(" not in repr(part), name


def large_schema():
    labels = [f"category {k} {LONG}" for k in range(250)]
    features = {f"feature {j} {LONG}": labels if j % 2 else (0, 1) for j in range(200)}
    return Schema(features, classes=["a", LONG], target=LONG, unit_id=f"unit {LONG}")


def large_model():
    bins = tuple(FeatureBins(np.arange(248.0), None, 250) for _ in range(200))
    tables = tuple(np.zeros((250, 3), np.int32) for _ in bins)
    maps = np.zeros(250, np.uint8)
    pairs = tuple(PairTable(0, j, maps, maps, np.zeros((3, 1, 1), np.int32)) for j in range(1, 200))
    return Model(bins, np.zeros(3, np.int32), tables, pairs, link="softmax")


def account():
    return Account(LONG, 3.0, 1e-6, "gdp", 1 << 200, 1 << 199, 0.0, LONG)


def terms():
    facts = {f"feature {j}": 160 * "x" for j in range(200)} | {"recipe": LONG}
    return Terms(
        epsilon=1.0, delta=1e-6, price=1 << 60, min_sigma_bits=20, tau=0.0, plan_digest=64 * "a", version="0.2.0",
        public_seed=1, commitment=64 * "b", facts=facts, unit_id=LONG, who=f"me@{LONG}",
    )  # fmt: skip


def record(k=0):
    return Record(f"fit {k}", LONG, "RELEASED", terms(), 1 << 60, 64 * "c", 64 * "d", "2026-11-22")


def entries():
    body = terms().to_json()
    return Listing(Entry(k, "RESERVED", LONG, f"fit {k}", "2026-11-22", body) for k in range(1000))


LARGE = {
    "schema": large_schema,
    "model": large_model,
    "shares": lambda: BinShares.of(large_model().bins, ()),
    "cost": lambda: PrivacyCost(1.0, 1e-6, 0.2, 1.1, LONG, 0.25),
    "account": account,
    "accounts": lambda: Listing([account()] * 300),
    "entry": lambda: entries()[0],
    "history": entries,
    "record": record,
    "fits": lambda: Listing(map(record, range(300))),
    "terms": terms,
    "explanation": lambda: explain_global(
        large_model(),
        BinShares.of(large_model().bins, ()),
        Schema({f"f{j} {LONG}": (0, 300) for j in range(200)}, classes=["a", LONG, 3], target=LONG),
    ),
    "axis": lambda: LARGE["explanation"]().terms[0].bins[0],
    "editor": lambda: Editor(
        model=large_model(),
        schema=large_schema(),
        shares=LARGE["shares"](),
        scale=1.0,
        kept=np.zeros(200, np.int8),
        finish=lambda edits, _: edits,
        edits=({"kind": "remove", "term": [LONG, LONG]},) * 99,
    ),
    "explanation of rows": lambda: LocalExplanation(
        tuple(f"f{j} {LONG}" for j in range(200)),
        tuple(np.full((100, 200), -(k**20)) for k in range(3)),
        np.zeros(3, np.int64),
        np.full((100, 200), LONG, dtype=object),
        large_model(),
        Schema({f"f{j} {LONG}": (0, 300) for j in range(200)}, classes=["a", LONG, 3], target=LONG),
        scale=1.0,
        offset=0.0,
    ),
    "draft": lambda: Schema.draft(pd.DataFrame({f"f{j} {LONG}": [0] for j in range(200)})),
    "ledger": lambda: Ledger(f"postgresql+psycopg://me:secret@nowhere/{LONG}"),
    "estimator": lambda: DPGBClassifier(schema=large_schema(), account=LONG),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_objects_fit_a_screen(name):
    shown = LARGE[name]()
    assert len(repr(shown)) <= MOST
    if name not in ("shares", "terms", "estimator", "axis", "editor"):
        page = shown._repr_html_()
        assert "<script>" not in page
        assert len(html.unescape(re.sub("<[^>]*>", " ", page))) <= MOST


def test_a_listing_is_a_tuple_that_prints_its_last_rows():
    history = entries()
    assert history == tuple(history)
    assert [entry.seq for entry in history[-2:]] == [998, 999]
    assert repr(Listing([])) == "()"
    lines = repr(history).splitlines()
    assert re.fullmatch(r"… \d+ earlier", lines[0])
    assert lines[1].split()[:2] == ["entry", "kind"]
    assert lines[-1].startswith("999 ")
    shown = len(lines) - 2
    assert shown > 5
    assert int(lines[0].split()[1]) == 1000 - shown
    assert "… " not in repr(Listing(history[:3]))
    page = history._repr_html_()
    assert f"1000 in all, the last {page.count('RESERVED')}" in page
    assert page.index(">998<") < page.index(">999<")


def test_what_a_schema_shows_is_what_it_declares():
    schema = Schema({"age": (17, 90), "job": ["office", "field"]}, classes=[0, 1])
    words = html.unescape(re.sub("<[^>]*>", " ", schema._repr_html_()))
    assert "age in [17, 90]" in " ".join(words.split())
    assert "job 2 declared categories: ['office', 'field']; all others" in " ".join(words.split())


def words_of(page):
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", page)).split())


def test_what_a_draft_shows_is_what_is_open():
    draft = Schema.draft(pd.DataFrame({"age": [1], "a: b": [0.5]}), target="age")
    words = words_of(draft._repr_html_())
    assert "SchemaDraft(1 features): open, to be filled in" in words
    assert all(" ".join(line.rpartition(": ")[::2]) in words for line in draft.open)
    assert "feature 'a: b' type" in words
    full = draft.fill({"a: b": (0, 1)}, classes=[0, 1])
    assert "a: b in [0, 1]" in words_of(full._repr_html_())


def test_a_ledger_shows_where_it_is_and_is_not_opened(tmp_path):
    there = tmp_path / "budget.db"
    words = words_of(Ledger(f"sqlite:///{there}")._repr_html_())
    assert f"Ledger('sqlite:///{there}')"[:100] in words
    assert "kept in a file accounts ledger.accounts()" in words
    assert not there.exists()
    assert "in memory, and lost" in words_of(Ledger("sqlite://")._repr_html_())
    server = Ledger("postgresql+psycopg://me:secret@nowhere/db")
    assert "kept on a server" in words_of(server._repr_html_())
    assert "secret" not in server._repr_html_()


def test_what_an_account_shows_is_what_is_left():
    ledger = Ledger("sqlite://")
    ledger.open_account("people", epsilon=3.0, delta=1e-6, unit_id="person")
    (shown,) = ledger.accounts()
    assert repr(shown) == (
        "Account('people', epsilon=3, delta=1e-06, analysis='gdp', unit_id='person'; 100.00 % left)"
    )
    assert "all rows of one 'person'" in repr(ledger.accounts())
    (entry,) = ledger.history("people")
    assert "epsilon=3.0, delta=1e-06, analysis=gdp" in repr(entry)


def test_what_is_left_out_is_told():
    assert brief("abcdef", 4) == "abc…"
    page = html_table("t", [(k, k) for k in range(50)])
    assert "… and 30 more" in page
