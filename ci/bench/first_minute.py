"""What the first minute costs: the demo with and without compiled kernels, ``--help``, and the import of the package.

    python ci/bench/first_minute.py --json first_minute.json
    python ci/bench/first_minute.py --smoke

Each case is run in turns here and at an earlier commit, which is checked out beside (``git worktree``); both use the
packages of this Python. Figures are CPU seconds of a process and all its descendants, the median of the repeats; a demo
with fresh folder compiles the kernels, and the warm one reads them. In a clone that lacks the commit only this one is
measured. The Python code of both is compiled in advance, as pip does. ``--smoke``: once, with a small demo on the
kernels that are kept already, and none of the earlier commit.
"""

import argparse
import compileall
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BEFORE = "e0dd442"  # the commit that the goals are ratios to
DEMO = ("-m", "dpgb_dask", "demo", "--quiet")
GOALS = {"demo, fresh": 0.3, "demo, warm": 0.55, "--help": 0.15, "import dpgb_dask": 0.6}


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # `timeout`: what was begun is put away
    with tempfile.TemporaryDirectory() as folder, earlier(Path(folder)) as before:
        code = {"now": ROOT} | ({} if before is None else {BEFORE: before})
        times = measure(options, code, Path(folder))
    records = report(times)
    if options.json:
        Path(options.json).write_text(json.dumps(records, indent=1) + "\n")
    return int(not options.smoke and not all(record.get("met", True) for record in records))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs of each case (3)")
    parser.add_argument("--json", help="file to write the figures to")
    parser.add_argument("--smoke", action="store_true", help="once, small, without fresh demos")
    return parser.parse_args()


@contextmanager
def earlier(folder: Path):
    """Check the earlier commit out into a folder; None if this clone does not have it."""
    place = folder / "before"
    git = ("git", "-C", str(ROOT), "worktree")
    subprocess.run([*git, "prune"], check=False, capture_output=True)  # of a run that was killed
    added = subprocess.run(
        [*git, "add", "--detach", str(place), BEFORE], check=False, capture_output=True
    )
    if added.returncode:
        print(f"SKIPPED {BEFORE}: this clone does not have the commit; there are no ratios")
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run([*git, "remove", "--force", str(place)], check=True, capture_output=True)


def measure(options: argparse.Namespace, code: dict[str, Path], folder: Path):
    """Return CPU seconds per (case, code), one per repeat."""
    times: dict[tuple[str, str], list[float]] = {}
    for root in code.values():
        compileall.compile_dir(root / "dpgb_dask", quiet=2)
    demo = (*DEMO, "--rows", "5000", "--workers", "1") if options.smoke else DEMO
    for turn in range(1 if options.smoke else options.repeats):
        for case in GOALS:
            for name, root in code.items():
                if options.smoke and (case == "demo, fresh" or (name == BEFORE and "demo" in case)):
                    continue
                words = {
                    "--help": ("-m", "dpgb_dask", "--help"),
                    "import dpgb_dask": ("-c", "import dpgb_dask"),
                }.get(case, (*demo, "--out", f"{name}.json"))
                # fresh in each turn, then warm
                kernels = None if options.smoke else folder / f"kernels-{name}-{turn}"
                seconds = run(words, root, kernels, folder)
                times.setdefault((case, name), []).append(seconds)
                print(f"  {case:18s} {name:8s} {seconds:8.2f} CPU-s", flush=True)
    return times


def run(words: tuple[str, ...], root: Path, kernels: Path | None, folder: Path) -> float:
    """Run Python on the code at a root; return the CPU seconds of the process and its descendants.

    Kernels are kept in the folder ``kernels``; None for where they are kept by default.

    Raises
    ------
    RuntimeError
        If it fails.
    """
    own = {**os.environ, "PYTHONPATH": str(root)}
    if kernels is not None:
        kernels.mkdir(exist_ok=True)
        own["NUMBA_CACHE_DIR"] = str(kernels)
    with open(folder / "said", "w+") as said:
        process = subprocess.Popen(
            [sys.executable, *words], env=own, cwd=folder, stdout=said, stderr=said
        )
        try:
            _, status, used = os.wait4(process.pid, 0)  # with all descendants that were waited for
        except SystemExit:
            process.terminate()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            raise RuntimeError(f"{' '.join(words)} failed:\n{said.read()[-2000:]}")
    return used.ru_utime + used.ru_stime


def report(times: dict[tuple[str, str], list[float]]) -> list[dict[str, Any]]:
    """Print the table, and return it."""
    records = []
    print(f"\n{'CPU seconds':18s} {'now':>8s} {BEFORE:>8s} {'ratio':>6s} {'goal':>6s}")
    for case, goal in GOALS.items():
        if (case, "now") not in times:
            continue
        now = median(times[case, "now"])
        record: dict[str, Any] = {"case": case, "cpu_s": now, "goal": goal}
        line = f"{case:18s} {now:8.2f}"
        if (case, BEFORE) in times:
            before = median(times[case, BEFORE])
            record |= {"before_cpu_s": before, "ratio": now / before, "met": now <= goal * before}
            verdict = "ok" if record["met"] else "MISS"
            line += f" {before:8.2f} {now / before:6.2f} {goal:6.2f} {verdict}"
        print(line)
        records.append(record)
    return records


if __name__ == "__main__":
    sys.exit(main())
