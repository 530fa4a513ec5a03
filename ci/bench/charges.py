"""What fits of pure recipes cost accounts in μ² and ρ: by their releases, and as one release of the whole ε.

    python ci/bench/charges.py

No rows are read: prices are known before a fit. Binary targets, 14 numeric features, the recipes' own settings.
"""

from dpgb_dask import Schema
from dpgb_dask.contracts.plan import Budget, Shape
from dpgb_dask.controller import account_units, accounting
from dpgb_dask.recipes import RECIPES
from dpgb_dask.training.fit import bill_of

EPSILONS = (0.1, 1.0, 8.0)
SCHEMA = Schema({f"x{j}": (0, 1) for j in range(14)}, classes=[0, 1])


def main() -> None:
    """Print, for each recipe, analysis and ε, both charges in natural units, and how many times the first fits in."""
    print(
        f"{'recipe':12} {'analysis':8} {'epsilon':>7} {'one release':>12} {'releases':>12} {'times':>7}"
    )
    for name, plan in RECIPES.items():
        if not plan.pure:
            continue
        for analysis in ("gdp", "zcdp"):
            for epsilon in EPSILONS:
                price = accounting.total_price(epsilon, 0.0, pure=True)
                bill = bill_of(plan, Shape(schema=SCHEMA), Budget(epsilon=epsilon, delta=0.0))
                whole = account_units.charge(price, pure=True, analysis=analysis)
                each = account_units.charge(price, pure=True, analysis=analysis, bill=bill)
                shown = (f"{amount / 2**64:12.6g}" for amount in (whole, each))
                print(f"{name:12} {analysis:8} {epsilon:7g} {' '.join(shown)} {whole / each:7.1f}")


if __name__ == "__main__":
    main()
