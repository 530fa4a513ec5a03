"""What CI runs, beside what CONTRIBUTING says of it: every step has its minutes, every test of a place its command."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RUN = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
MOST_MINUTES = {"all": 75, "places": 25}
MARKED = re.compile(r"\bmark\.(services|hpc)\b")
CALL = re.compile(r"\bpytest\b.* -m \"?(services|hpc)\b(.*)")


def steps(kind):
    """Return the names of all lines ``kind NAME …`` of .ci/run."""
    return [
        quoted or plain
        for quoted, plain in re.findall(
            rf'^(?:\w+=\S+ )?{kind} (?:"([^"]+)"|(\S+)) \d', RUN, re.MULTILINE
        )
    ]


def minutes():
    """Return the minutes of each step by the table of CONTRIBUTING; steps of one row share them."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("| step of `.ci/run` | minutes |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| (`.*?) \| ([\d.]+) \|$", table, re.MULTILINE)
    return {tuple(re.findall(r"`([^`]+)`", names)): float(took) for names, took in rows}


def test_every_step_has_its_minutes_in_contributing():
    told = [name for names in minutes() for name in names]
    assert sorted(told) == sorted([*steps("step"), *steps("place")])


@pytest.mark.parametrize("which", MOST_MINUTES)
def test_the_minutes_stay_within_the_goal(which):
    counted = {*steps("place")} if which == "places" else {*steps("step"), *steps("place")}
    assert (
        sum(took for names, took in minutes().items() if counted & {*names}) <= MOST_MINUTES[which]
    )


def test_contributing_states_the_sum_of_its_minutes():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (stated,) = re.findall(r"(\d+) minutes in all", text)
    assert int(stated) == round(sum(minutes().values()))


def test_the_results_of_every_place_are_printed():
    (printed,) = re.findall(r"^python ci/results\.py \"\$work\"/\{(.*)\}\.xml$", RUN, re.MULTILINE)
    assert {*steps("place")} <= {*printed.split(",")}


def commands():
    """Return, by command and marker, the paths of which a command of a place runs the tests with that marker."""
    ran = {}
    for path in sorted((ROOT / "ci").glob("*/*")):
        if path.is_file() and os.access(path, os.X_OK):
            for marker, given in re.findall(CALL, path.read_text(encoding="utf-8")):
                paths = [ROOT / name for name in re.findall(r"tests/[\w./-]+", given)]
                ran[path.relative_to(ROOT).as_posix(), marker] = paths
    return ran


def test_each_test_of_a_place_is_run_by_one_command():
    wrong, n_files = {}, 0
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for marker in set(MARKED.findall(path.read_text(encoding="utf-8"))):
            ran_by = [
                name
                for (name, own), given in commands().items()
                if own == marker and any(path.is_relative_to(one) for one in given)
            ]
            n_files += 1
            if len(ran_by) != 1:
                wrong[str(path.relative_to(ROOT)), marker] = ran_by
    assert n_files
    assert wrong == {}


def test_every_command_of_a_place_is_a_step():
    lacks = [
        name for name, _ in commands() if not re.search(rf"^place .* {name}$", RUN, re.MULTILINE)
    ]
    assert commands()
    assert lacks == []


# ---- what tests share ------------------------------------------------------------------------------------------------


def test_what_a_folder_shares_ends_with_it():
    """In a folder that is no package, pytest keeps a fixture of ``scope="package"`` to the end of the run."""
    sharing = [
        path.parent
        for path in (ROOT / "tests").rglob("*.py")
        if re.search(r'fixture\([^)]*scope="package"', path.read_text(encoding="utf-8"))
    ]
    assert sharing
    assert [folder for folder in sharing if not (folder / "__init__.py").exists()] == []


# ---- ci/hpc/submit.sh ------------------------------------------------------------------------------------------------

PROGRAMS = {
    "dask": 'while [[ $1 != --scheduler-file ]]; do shift; done; echo there >"$2"; exec sleep 60',
    "srun": 'printf "%s\\n" "$@" >part; mv part told',
    "dpgb-dask": "until [[ -e told ]]; do sleep 0.1; done",
}


def test_a_worker_on_slurm_gets_a_core_for_each_of_its_threads(tmp_path):
    """Slurm's own: a step is not given what its job has been, where srun is not told."""
    for name, script in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{script}\n")
        (tmp_path / name).chmod(0o755)
    job = {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "7", "DPGB_LEDGER": "x"}
    job |= {"SLURM_CPUS_PER_TASK": "3", "SLURM_MEM_PER_CPU": "500"}
    job["PATH"] = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run([ROOT / "ci/hpc/submit.sh"], cwd=tmp_path, env=os.environ | job, check=True)
    told = (tmp_path / "told").read_text().split()
    assert told[:3] == ["--cpus-per-task=3", "dask", "worker"]
    assert told[told.index("--nthreads") + 1] == "3"
    assert told[told.index("--memory-limit") + 1] == "1500MiB"
