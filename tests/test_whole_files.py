"""Files for people: a new one takes the place of the old once it is whole, so no end of a process leaves a half."""

import errno
import os
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from stat import S_IMODE
from unittest.mock import Mock

import numpy as np
import pytest
from cli_parts import run
from thinned import thinned

from dpgb_dask import Schema
from dpgb_dask.controller.ledger_files import is_of_ledger
from dpgb_dask.errors import StructureError
from dpgb_dask.whole_files import NO_LINKS, folder_of, replaced_by, replacing, write_whole

OLD = "what was there before"


@contextmanager
def a_full_disk():
    """Files that this process writes may have 64 bytes."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


WRITERS = {
    "model": lambda model, path: model.save(path),
    "edited": lambda model, path: model.edit().remove("x").done().save(path),
    "python": lambda model, path: model.to_python(path),
    "xgboost": lambda model, path: model.to_xgboost(path),
    "sql": lambda model, path: model.to_sql(path),
    "schema": lambda model, path: model.schema_.save(path),
    "draft": lambda _, path: Schema.draft(np.zeros((1, 2))).save(path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_an_error_names_the_file_that_was_asked_for(name, classifier, tmp_path):
    path = tmp_path / "no" / "file"
    with pytest.raises((StructureError, OSError), match="No such file") as raised:
        WRITERS[name](classifier, path)
    assert repr(str(path)) in str(raised.value)


@pytest.mark.parametrize("name", ["schema", "draft"])
def test_a_url_is_no_file_of_this_machine(name, classifier, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for url in ("memory://s.json", "memory://", "s3://bucket/s.json"):
        with pytest.raises(StructureError, match=f"path='{url}' is a URL"):
            WRITERS[name](classifier, url)
        with pytest.raises(StructureError, match=f"path='{url}' is a URL"):
            Schema.load(url)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", WRITERS)
def test_a_tilde_is_the_users_folder(name, classifier, tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in ("~/text", Path("~/path")):
        WRITERS[name](classifier, path)
    assert {*os.listdir(tmp_path)} == {"text", "path", "work"}


def test_a_tilde_is_the_users_folder_at_the_command_line(classifier, tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path))
    classifier.save("~/m.json")
    classifier.schema_.save("~/s.json")
    assert Schema.load("~/s.json") == classifier.schema_
    (tmp_path / "rows.csv").write_text(",".join(classifier.schema_.names) + "\n")
    assert run("predict", "~/m.json", "~/rows.csv", "--out", "~/out.csv") == 0
    assert run("report", "~/m.json", "--html", "~/m.html") == 0
    assert run("export", "~/m.json", "--to", "python", "--out", "~/scorer.py") == 0
    assert run("edit", "~/m.json", "--remove", "x", "--out", "~/e.json") == 0
    assert run("schema", "~/rows.csv", "--out", "~/draft.json") == 0
    names = {"out.csv", "m.html", "scorer.py", "e.json", "draft.json"}
    assert names <= {*os.listdir(tmp_path)}
    assert not os.listdir(".")


@pytest.mark.parametrize("name", thinned([*WRITERS], every=3))
def test_a_file_that_cannot_be_written_leaves_the_old_one(name, classifier, tmp_path):
    path = tmp_path / "file"
    path.write_text(OLD)
    with a_full_disk(), pytest.raises((StructureError, OSError)):
        WRITERS[name](classifier, path)
    assert path.read_text() == OLD
    assert os.listdir(tmp_path) == ["file"]
    WRITERS[name](classifier, path)
    assert path.read_text() != OLD
    assert os.listdir(tmp_path) == ["file"]


def test_a_page_that_cannot_be_written_leaves_the_old_one(classifier, tmp_path, capsys):
    classifier.save(tmp_path / "m.json")
    page = tmp_path / "page.html"
    page.write_text(OLD)
    report = ("report", tmp_path / "m.json", "--html", page, "--overwrite")
    with a_full_disk():
        assert run(*report) == 1
    assert f"{str(page)!r} cannot be written: File too large. Make room" in capsys.readouterr().err
    assert page.read_text() == OLD
    assert run(*report) == 0
    assert page.read_text().endswith("</html>\n")


def test_a_killed_writer_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text(OLD)
    code = f"""
import os, pathlib, signal
from dpgb_dask.whole_files import write_whole
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
write_whole(pathlib.Path({str(path)!r}), b"half")
"""
    assert (
        subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode
        == -signal.SIGKILL
    )
    assert path.read_text() == OLD
    write_whole(path, b"new")
    assert path.read_text() == "new"


def test_files_of_others_beside_it_stay(tmp_path):
    for name in ("file", "file.part", ".file.part", "file~"):
        (tmp_path / name).write_text(OLD)
    write_whole(tmp_path / "file", b"new")
    assert sorted(os.listdir(tmp_path)) == sorted(["file", "file.part", ".file.part", "file~"])
    assert [p.read_text() for p in tmp_path.iterdir()].count(OLD) == 3


def test_writers_at_once_leave_one_of_their_files(tmp_path):
    path = tmp_path / "file"
    texts = [str(k).encode() * 100_000 for k in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda text: write_whole(path, text), 5 * texts))
    assert path.read_bytes() in texts
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_permissions_stay(mode, tmp_path):
    path = tmp_path / "file"
    path.write_text(OLD)
    path.chmod(mode)
    write_whole(path, b"new")
    assert S_IMODE(path.stat().st_mode) == mode
    (tmp_path / "plain").write_text(OLD)
    write_whole(tmp_path / "new", b"new")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_name_may_be_as_long_as_the_disk_allows(tmp_path):
    write_whole(tmp_path / ("n" * 255), b"new")
    assert (tmp_path / ("n" * 255)).read_bytes() == b"new"


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    link = tmp_path / "link"
    link.symlink_to(folder / "file")
    for data in (b"first", b"second"):
        write_whole(link, data)
        assert link.is_symlink()
        assert (folder / "file").read_bytes() == data
    assert folder_of(link) == folder.resolve()
    assert os.listdir(folder) == ["file"]


@pytest.mark.parametrize("name", [".", "/", "folder"])
def test_a_folder_is_refused_and_nothing_lies_beside_it(name, tmp_path, monkeypatch):
    (tmp_path / "inner" / "folder").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "inner")
    monkeypatch.setattr(Path, "open", Mock(side_effect=AssertionError("nothing is opened")))
    with pytest.raises(IsADirectoryError):
        write_whole(Path(name), b"data")
    folder_of(Path(name))  # of any name


def test_a_pipe_or_a_device_stays_what_it_is(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR)
    write_whole(pipe, b"told")
    assert os.read(reader, 9) == b"told"
    os.close(reader)
    assert pipe.is_fifo()
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_pipe_is_not_read_where_a_command_looks_for_ledgers(tmp_path):
    """It would wait for whoever writes to it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    both = os.open(pipe, os.O_RDWR)
    os.write(both, b"of others" * 999)  # enough to be read more than once
    assert not is_of_ledger(pipe)
    assert os.read(both, 1 << 16) == b"of others" * 999
    os.close(both)


@pytest.mark.parametrize("link", [False, True])
def test_predictions_take_the_place_of_no_device_or_pipe(classifier, tmp_path, link, capsys):
    classifier.save(tmp_path / "m.json")
    (tmp_path / "rows.csv").write_text(",".join(classifier.schema_.names) + "\n")
    place = tmp_path / "pipe.csv"
    os.mkfifo(place)
    if link:
        (tmp_path / "link.csv").symlink_to(place)
    before = {*os.listdir(tmp_path)}
    out = tmp_path / ("link.csv" if link else "pipe.csv")
    given = ("predict", tmp_path / "m.json", tmp_path / "rows.csv", "--out", out)
    assert run(*given, "--overwrite") == 1
    assert f"{str(out)!r} is a device or a pipe" in capsys.readouterr().err
    assert place.is_fifo()
    assert {*os.listdir(tmp_path)} == before


@pytest.mark.parametrize("name", WRITERS)
def test_a_device_is_written_to_and_stays(name, classifier, tmp_path):
    place = tmp_path / "null"
    place.symlink_to(os.devnull)
    WRITERS[name](classifier, place)
    assert place.is_char_device()


def folder(place, text):
    """A folder with a file."""
    place.mkdir()
    (place / "file").write_text(text)


def another_after(monkeypatch, owner, name, place, act):
    """Another process acts once this one has looked at a place for the last time."""
    look = getattr(owner, name)

    def looked(path):
        there = look(path)
        if path == place:
            monkeypatch.setattr(owner, name, look)
            act()
        return there

    monkeypatch.setattr(owner, name, looked)


def write(place, overwrite, meanwhile, make=folder):
    """Write in place of what is there; ``meanwhile`` is done once it is written beside it."""
    with replacing(place, overwrite=overwrite) as part:
        make(part, "new")
        meanwhile()


def test_what_another_puts_in_place_at_the_last_moment_stays(tmp_path, monkeypatch):
    place = tmp_path / "data"
    puts = partial(
        another_after, monkeypatch, os.path, "lexists", place, lambda: folder(place, OLD)
    )
    with pytest.raises(StructureError, match="was written by another process meanwhile"):
        write(place, overwrite=False, meanwhile=puts)
    assert (place / "file").read_text() == OLD


def test_a_file_that_another_puts_in_place_at_the_last_moment_stays(tmp_path, monkeypatch):
    place = tmp_path / "predictions.csv"
    other = partial(place.write_text, OLD)
    puts = partial(another_after, monkeypatch, os.path, "lexists", place, other)
    with pytest.raises(StructureError, match="was written by another process meanwhile"):
        write(place, overwrite=False, meanwhile=puts, make=Path.write_text)
    assert place.read_text() == OLD
    assert list(tmp_path.iterdir()) == [place]


@pytest.mark.parametrize("code", sorted(NO_LINKS | {errno.EXDEV}))
def test_a_file_is_put_in_place_where_a_disk_has_no_links(code, tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "hardlink_to", Mock(side_effect=OSError(code, "no links here")))
    place = tmp_path / "predictions.csv"
    with replacing(place, overwrite=False) as part:
        part.write_text("new")
    assert place.read_text() == "new"
    assert list(tmp_path.iterdir()) == [place]


def test_what_a_killed_process_has_just_taken_away_is_put_back(tmp_path, monkeypatch):
    place = tmp_path / "data"
    folder(place, OLD)
    away = partial(place.rename, replaced_by(place))
    takes = partial(another_after, monkeypatch, Path, "is_dir", place, away)
    with pytest.raises(StructureError, match="was written by another process meanwhile"):
        write(place, overwrite=True, meanwhile=takes)
    assert (place / "file").read_text() == OLD
    assert list(tmp_path.iterdir()) == [place]


def test_what_a_killed_process_had_replaced_is_in_no_way(tmp_path):
    place = tmp_path / "data"
    folder(place, OLD)
    folder(replaced_by(place), "older")
    write(place, overwrite=True, meanwhile=lambda: None)
    assert (place / "file").read_text() == "new"
    assert list(tmp_path.iterdir()) == [place]
