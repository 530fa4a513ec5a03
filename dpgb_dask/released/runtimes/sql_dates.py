"""Dates in SQL: from text in ISO form to the parts of a feature, in whole numbers alone, step by step.

A step is a list of columns, each computed from columns of the steps before. Numbers are of the proleptic Gregorian
calendar, whose years begin in March here, so that a leap day is the last of its year (Hinnant: "chrono-compatible
low-level date algorithms"). Years are counted from far before, so that no number that is divided is negative.
"""

import datetime

from dpgb_dask.contracts.features import Datetime, days_of

DAY = 86_400
BEFORE = 10**9  # years; a multiple of 400
DIGIT, HOUR, SIXTY = "[0-9]", "[0-2][0-9]", "[0-5][0-9]"
FAR = 365 * BEFORE + BEFORE // 4 - BEFORE // 100 + BEFORE // 400
MARCH_TO_1 = 306  # days from the first of March of the year 0 to the first day of the year 1
YEARS_400 = 146_097  # days
POINT = (
    r"(-?[0-9]{4,9})-([0-9][0-9])-([0-9][0-9])"
    r"(?:[ T]([01][0-9]|2[0-3])(?::([0-5][0-9])(?::([0-5][0-9])(?:\.([0-9]+))?)?)?)?"
)
ZONE = r"([+-])([01][0-9]|2[0-3])(?::?([0-5][0-9])(?::?([0-5][0-9])(?:\.([0-9]+))?)?)?"

Steps = list[list[str]]


def sqlite_fields(x: str, n: str) -> Steps:
    """Return the fields of a value of SQLite, which knows no patterns but GLOB.

    Parameters
    ----------
    x : str
        The value.
    n : str
        Prefix of the columns. The last step has year (NULL if the text is none), month, day, clock, part, sign, zone
        and small: the seconds of the day, their millionths, and the same of the zone.
    """
    head, tail = f"substr({n}rest, 1, 6)", f"substr({n}rest, 7)"
    at = " ".join(f"WHEN instr({tail}, '{c}') > 0 THEN instr({tail}, '{c}')" for c in "Z+-")
    digits = f"replace(substr({n}ahead, 2), ':', '')"
    clocks = ["", f"[ T]{HOUR}", f"[ T]{HOUR}:{SIXTY}", f"[ T]{HOUR}:{SIXTY}:{SIXTY}"]
    minutes = [f"[-+]{HOUR}{c}{SIXTY}" for c in ("", ":")]
    seconds = [f"{form}{c}{SIXTY}" for form in minutes for c in ("", ":")]
    clock = _globs(f"{n}time", clocks, clocks[-1:])
    zone = _globs(f"{n}ahead", ["", "Z", f"[-+]{HOUR}", *minutes, *seconds], seconds)
    early = "substr({}, 2, 2) < '24'"
    text = f"CAST({x} AS TEXT)"
    # functions of text end at the first NUL, while NULs at the end alone are no part of a value; of the bytes, those
    # behind it, whatever the database's encoding
    beyond = f"substr(CAST({text} AS BLOB), length(CAST(substr({text}, 1) AS BLOB)) + 1)"
    only_nuls = f"rtrim(hex({beyond}), '0') = ''"
    valid = [
        f"length({n}figures) BETWEEN 4 AND 9",
        _all_digits(f"{n}figures"),
        f"{head} GLOB '-{DIGIT}{DIGIT}-{DIGIT}{DIGIT}'",
        f"({clock}) AND {early.format(f'{n}time')}",
        f"({zone}) AND ({n}ahead = 'Z' OR {early.format(f'{n}ahead')})",
    ]
    return [
        [f"CASE WHEN typeof({x}) IN ('text', 'blob') AND {only_nuls} THEN {text} END AS {n}text"],
        [f"CASE WHEN substr({n}text, 1, 1) = '-' THEN substr({n}text, 2) ELSE {n}text END AS {n}bare"],
        [
            f"substr({n}bare, 1, instr({n}bare, '-') - 1) AS {n}figures",
            f"substr({n}bare, instr({n}bare, '-')) AS {n}rest",
        ],
        [f"CASE {at} ELSE 99 END AS {n}place"],
        [
            f"substr({tail}, 1, {n}place - 1) AS {n}time",
            f"substr({tail}, {n}place) AS {n}ahead",
        ],
        [
            f"CASE WHEN {' AND '.join(valid)} THEN CAST({n}figures AS INTEGER)"
            f" * CASE WHEN {n}bare = {n}text THEN 1 ELSE -1 END END AS {n}year",
            f"CAST(substr({n}rest, 2, 2) AS INTEGER) AS {n}month",
            f"CAST(substr({n}rest, 5, 2) AS INTEGER) AS {n}day",
            f"{_in_seconds([f'substr({n}time, {k}, 2)' for k in (2, 5, 8)])} AS {n}clock",
            f"{_millionths(f'{n}time')} AS {n}part",
            f"substr({n}ahead, 1, 1) AS {n}sign",
            f"{_in_seconds([f'substr({digits}, {k}, 2)' for k in (1, 3, 5)])} AS {n}zone",
            f"{_millionths(f'{n}ahead')} AS {n}small",
        ],
    ]  # fmt: skip


def _globs(x: str, whole: list[str], before_part: list[str]) -> str:
    """Return whether a text has one of some forms, of which some may go on with parts of a second."""
    forms = [f"{x} = ''" if form == "" else f"{x} GLOB '{form}'" for form in whole]
    part = f"substr({x}, instr({x}, '.') + 1)"
    forms += [f"({x} GLOB '{form}.?*' AND {_all_digits(part)})" for form in before_part]
    return " OR ".join(forms)


def _all_digits(x: str) -> str:
    return f"{x} NOT GLOB '*[^0-9]*'"


def _in_seconds(parts: list[str]) -> str:
    hour, minute, second = (f"CAST({part} AS INTEGER)" for part in parts)
    return f"({hour} * 3600 + {minute} * 60 + {second})"


def _millionths(x: str) -> str:
    part = f"substr({x}, instr({x}, '.') + 1)"
    return f"CASE WHEN instr({x}, '.') > 0 THEN CAST(substr({part} || '000000', 1, 6) AS INTEGER) ELSE 0 END"


def duckdb_fields(x: str, n: str) -> Steps:
    """Return the fields of a value of DuckDB, as `sqlite_fields` does; its own dates are read by their text."""
    text, kind = f"CAST({x} AS VARCHAR)", f"{n}kind"
    # in the zone of the session, whose offset may have seconds that the text leaves out; infinity has no epoch
    in_utc = f"CAST(make_timestamp(epoch_us(TRY_CAST({x} AS TIMESTAMPTZ))) AS VARCHAR)"
    own = f"({kind} = 'DATE' OR starts_with({kind}, 'TIMESTAMP'))"
    # of a pattern, DuckDB gives nine groups at most
    point, zone = f"'{POINT}'", f"'{ZONE}'"

    def whole(column: str, pattern: str, k: int) -> str:
        return f"coalesce(TRY_CAST(regexp_extract({column}, {pattern}, {k}) AS BIGINT), 0)"

    def clock(column: str, pattern: str, k: int) -> str:
        hour, minute, second = (whole(column, pattern, k + i) for i in range(3))
        return f"{hour} * 3600 + {minute} * 60 + {second}"

    def millionths(column: str, pattern: str, k: int) -> str:
        return f"CAST(substr(regexp_extract({column}, {pattern}, {k}) || '000000', 1, 6) AS BIGINT)"

    t, ahead, written = f"{n}text", f"{n}ahead", f"{n}written"
    # as others read infinity: the farthest point that the type can count, which of nanoseconds is not far
    first, last = (
        f"CASE WHEN ends_with({kind}, '_NS') THEN '{near}' ELSE '{far}' END"
        for near, far in (
            ("1677-09-21 00:12:43", "-999999999-01-01"),
            ("2262-04-11 23:47:16", "999999999-12-31"),
        )
    )
    return [
        [
            f"CASE typeof({x}) WHEN 'TIMESTAMP WITH TIME ZONE' THEN coalesce({in_utc}, {text})"
            rf" WHEN 'BLOB' THEN regexp_replace({text}, '(\\x00)+$', '')"
            f" ELSE rtrim({text}, chr(0)) END AS {written}",
            f"typeof({x}) AS {kind}",
        ],
        [
            # the year 1 before Christ, which only a date that is no text may have, is the year 0
            f"CASE WHEN NOT {own} THEN {written} WHEN {written} = 'infinity' THEN {last}"
            f" WHEN {written} = '-infinity' THEN {first} ELSE replace({written}, ' (BC)', '') END AS {t}",
            f"{own} AND contains({written}, ' (BC)') AS {n}early",
        ],
        [f"substr({t}, length(regexp_extract({t}, {point}, 0)) + 1) AS {ahead}"],
        [
            f"CASE WHEN regexp_full_match({t}, '{POINT}(?:Z|{ZONE})?') THEN"
            f" CASE WHEN {n}early THEN 1 - {whole(t, point, 1)} ELSE {whole(t, point, 1)} END END AS {n}year",
            f"{whole(t, point, 2)} AS {n}month",
            f"{whole(t, point, 3)} AS {n}day",
            f"{clock(t, point, 4)} AS {n}clock",
            f"{millionths(t, point, 7)} AS {n}part",
            f"regexp_extract({ahead}, {zone}, 1) AS {n}sign",
            f"{clock(ahead, zone, 2)} AS {n}zone",
            f"{millionths(ahead, zone, 5)} AS {n}small",
        ],
    ]


def part_steps(feature: Datetime, n: str, over: str) -> Steps:
    """Return what follows the fields: the parts of a feature, in columns that are called as they are; NULL if missing.

    Parameters
    ----------
    feature : Datetime
    n : str
        Prefix of the columns.
    over : str
        The sign of the division of whole numbers that leaves out the rest.
    """
    year, month, day = f"{n}year", f"{n}month", f"{n}day"
    leap = f"{year} % 4 = 0 AND ({year} % 100 <> 0 OR {year} % 400 = 0)"
    longest = (
        f"CASE WHEN {month} = 2 THEN CASE WHEN {leap} THEN 29 ELSE 28 END"
        f" WHEN {month} IN (4, 6, 9, 11) THEN 30 ELSE 31 END"
    )
    count = f"{n}count"
    days = (
        f"(365 * {count} + {count} {over} 4 - {count} {over} 100 + {count} {over} 400"
        f" + (153 * (({month} + 9) % 12) + 2) {over} 5 + {day} - 1 - {FAR + MARCH_TO_1})"
    )
    ahead = (
        f"CASE {n}sign WHEN '-' THEN {n}zone + ({n}part + {n}small) {over} 1000000"
        f" WHEN '+' THEN -{n}zone - CASE WHEN {n}part < {n}small THEN 1 ELSE 0 END ELSE 0 END"
    )
    # seconds since the first day of the year 1
    start = datetime.date(1, 1, 1)
    first, last = ((one - start).days * DAY for one in days_of(feature))
    last += DAY - 1
    at, place, in_400 = f"{n}at", f"({n}at {over} {DAY} + {MARCH_TO_1})", f"{n}in_400"
    of_400, of_year, march = f"{n}of_400", f"{n}of_year", f"{n}march"
    return [
        [
            f"CASE WHEN {month} BETWEEN 1 AND 12 AND {day} BETWEEN 1 AND {longest}"
            f" THEN {year} + {BEFORE} - CASE WHEN {month} <= 2 THEN 1 ELSE 0 END END AS {count}"
        ],
        [f"{days} * {DAY} + {n}clock + {ahead} AS {n}raw"],
        [f"CASE WHEN {n}raw < {first} THEN {first} WHEN {n}raw > {last} THEN {last} ELSE {n}raw END AS {at}"],
        [
            f"{place} % {YEARS_400} AS {in_400}",
            f"{place} {over} {YEARS_400} AS {n}rounds",
            f"({at} - {first}) {over} {DAY} AS {n}days",
            f"{at} {over} {DAY} % 7 AS {n}weekday",
            f"{at} % {DAY} {over} 3600 AS {n}hour",
        ],
        [
            f"({in_400} - {in_400} {over} 1460 + {in_400} {over} 36524 - {in_400} {over} 146096) {over} 365 AS {of_400}"
        ],
        [f"{in_400} - (365 * {of_400} + {of_400} {over} 4 - {of_400} {over} 100) AS {of_year}"],
        [f"(5 * {of_year} + 2) {over} 153 AS {march}"],
        [
            f"CASE WHEN {march} < 10 THEN {march} + 3 ELSE {march} - 9 END AS {n}the_month",
            f"{of_400} + {n}rounds * 400 + CASE WHEN {march} < 10 THEN 0 ELSE 1 END AS {n}the_year",
        ],
    ]  # fmt: skip


def column_of(part: str, n: str) -> str:
    """Return the column of a part."""
    return f"{n}the_{part}" if part in ("year", "month") else f"{n}{part}"
