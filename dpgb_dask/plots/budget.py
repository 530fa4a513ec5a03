"""The picture of a ledger's accounts: what each fit spent, what is reserved, what is left."""

from typing import Any

from dpgb_dask.calls import spoken
from dpgb_dask.controller.ledger import Ledger, no_ledger
from dpgb_dask.controller.ledger_book import ENDED, Account, Record
from dpgb_dask.display import floored
from dpgb_dask.errors import LedgerError
from dpgb_dask.names import ACCOUNT_UNITS
from dpgb_dask.plots.style import GREY, dress, is_dark, new_figure, plain

MOST = 20  # most fits of an account that are drawn on their own: the newest
ROOMY = 40.0  # least share of the cap, in percent, that has room for a sentence
WIDE = 9.0  # least share of the cap, in percent, that has room for words


@spoken
def plot_budget(ledger: Ledger, account: str | None = None) -> Any:
    """Draw the accounts of a ledger, or one of them: a bar from nothing to the cap.

    Parameters
    ----------
    ledger : Ledger
    account : str, optional
        None for all accounts.

    Returns
    -------
    matplotlib.figure.Figure
        Shares of the cap in the unit in which charges add up: one part per fit, the oldest at the left, with its ε and
        recipe where there is room; fits that are not ended are hatched, as their charge may still shrink.

    Raises
    ------
    ImportError
        If matplotlib is missing.
    LedgerError
        If it is no ledger, or there is no such account, or none at all.
    """
    if not isinstance(ledger, Ledger):
        raise LedgerError(no_ledger(ledger))
    accounts = ledger.accounts() if account is None else (ledger.account(account),)
    if not accounts:
        raise LedgerError(
            "The ledger has no account yet. Open one with ledger.open_account(name, epsilon=…, delta=…)."
        )
    figure = new_figure(9.0, 1.0 * len(accounts) + 1.3)
    axes = figure.subplots()
    for k, one in enumerate(accounts):
        _account(axes, k, one, ledger)
    axes.set_yticks(
        range(len(accounts)),
        [
            f"{plain(one.name)}\ncap ε = {one.epsilon:g}, δ = {one.delta:g}\n"
            + ("for one row" if one.unit_id is None else f"for one {plain(one.unit_id, 16)}")
            for one in accounts
        ],
    )
    axes.set_ylim(len(accounts) - 0.4, -0.6)
    axes.set_xlim(0, 100)
    units = sorted({ACCOUNT_UNITS[one.analysis] for one in accounts})
    axes.set_xlabel(
        f"% of the cap, in {', '.join(units)}, which adds up over fits", fontsize="small"
    )
    dress(axes)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def _account(axes: Any, place: int, account: Account, ledger: Ledger) -> None:
    fits = ledger.fits(account.name)
    share = 100 / account.cap
    early, late = fits[:-MOST], fits[-MOST:]
    at = 0.0
    if early:
        width = share * sum(fit.charge for fit in early)
        _bar(axes, place, at, width, f"{len(early)} earlier fits", "earlier")
        at += width
    for fit in late:
        width = share * fit.charge
        _bar(axes, place, at, width, _words(fit), _state(fit))
        at += width
    left = 100 - at
    at_delta = "" if account.analysis == "pure" else f" at δ = {account.delta:g}"
    more = f"one more fit may ask\nε = {floored(ledger.remaining(account.name), 3)}{at_delta}"
    said = f"left {left:.3g} %: {more}" if left > ROOMY else f"left {left:.3g} %"
    _bar(axes, place, at, left, said, "left")


def _state(fit: Record) -> str:
    return fit.state if fit.state in ENDED else "UNFINISHED"


def _words(fit: Record) -> str:
    return f"ε = {fit.terms.epsilon:g}\n{plain(fit.terms.facts.get('recipe', ''), 14)}"


def _bar(axes: Any, place: int, at: float, width: float, words: str, state: str) -> None:
    """Draw one part of an account's bar, and say once in the legend what its colour means."""
    text = axes.xaxis.label.get_color()
    blue = "#56B4E9" if is_dark(axes) else "#0072B2"
    looks: dict[str, tuple[dict[str, Any], str]] = {
        "RELEASED": ({"color": blue}, "spent"),
        "SETTLED": ({"color": GREY}, "spent, closed without a model"),
        "UNFINISHED": ({"color": "#E69F00", "hatch": "//"}, "reserved, not ended"),
        "earlier": ({"color": blue, "alpha": 0.6}, "earlier fits"),
        "left": ({"facecolor": "none"}, "left"),
    }
    look, meaning = looks[state]
    _, known = axes.get_legend_handles_labels()
    edge = text if state == "left" else axes.get_facecolor()
    label = meaning if meaning not in known else None
    axes.barh([place], [width], left=[at], height=0.55, label=label, **(look | {"edgecolor": edge}))
    if width >= WIDE:
        dark_text = is_dark(axes) or state == "UNFINISHED"
        inside = text if state == "left" else "black" if dark_text else "white"
        axes.annotate(
            words, (at + width / 2, place), ha="center", va="center", fontsize="small", color=inside
        )
