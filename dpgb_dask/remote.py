"""Files at URLs that fsspec opens, such as s3://: a store that does not answer or refuses is an error in our words.

Credentials are the environment's. Foreign errors are not repeated, and a URL with a password is refused, because URLs
stand in errors, reports and task graphs.
"""

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dpgb_dask.errors import StructureError, kind_of
from dpgb_dask.whole_files import name_of, path_of, write_given

WAIT_SECONDS = 60.0  # in which a store must answer for the first time
CREDENTIALS = "Give this process credentials for it in its environment (for s3://: AWS_ACCESS_KEY_ID and others)."
# user:password@, with any character in the password; a port is no password, and a path may hold an @
_PASSWORD = re.compile(r"://[^/@:\[]*:(?!\d+(?:/|$))[^@]*@")


def local_path(path: str) -> Path | None:
    """Return the local path that a path or URL names, `~` as the user's folder; None for a remote URL.

    What fsspec chains is one, such as ``simplecache::people.zarr``.
    """
    if ("://" in path and not path.startswith(("file://", "local://"))) or _is_chain(path):
        return None
    return path_of(path.split("://", 1)[-1])


def _is_chain(path: str) -> bool:
    first, *others = path.split("::")
    if not others:
        return False
    import fsspec  # noqa: PLC0415 - not needed for local files

    return first in fsspec.available_protocols()


def is_url(path: str) -> bool:
    """Whether a path is the URL of a remote place."""
    return local_path(path) is None


def path_or_url(text: str) -> Path | str:
    """Return a local path, or the URL of a remote file as it is: a `Path` would lose a slash of it."""
    local = local_path(text)
    return text if local is None else local


def place_of(path: Any) -> Path | str:
    """Return the place that a caller names, as `path_or_url` does; raises as `name_of`."""
    return path_or_url(name_of(path))


def options_of(storage_options: Any) -> dict[str, Any]:
    """Return a caller's options for fsspec, which may hold a password and are not repeated.

    Raises
    ------
    StructureError
        If they are no mapping.
    """
    if storage_options is None:
        return {}
    if not isinstance(storage_options, Mapping):
        raise StructureError(
            f"storage_options is a {type(storage_options).__name__}. Give a mapping of fsspec's options, or None."
        )
    return dict(storage_options)


def check_no_password(url: str) -> None:
    """Refuse a URL that holds a password, also one of a chain such as simplecache::s3://.

    Raises
    ------
    StructureError
        It does not repeat the password.
    """
    given = any(map(_PASSWORD.search, url.split("::")))
    with suppress(ValueError):  # no URL; what opens it says so
        given = given or (is_url(url) and urlsplit(url).password is not None)
    if given:
        scheme = url.split("://", maxsplit=1)[0]
        raise StructureError(
            f"The URL {scheme}://… holds a password, and URLs are repeated in errors and task graphs."
            " Give credentials in the environment of each process."
        )


def open_files(url: str, options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it; sends nothing, but for archives, which are opened.

    Raises
    ------
    StructureError
        If the URL holds a password, fsspec does not know its protocol, a package is not installed, or an archive cannot
        be opened.
    """
    import fsspec  # noqa: PLC0415 - not needed for local files

    check_no_password(url)
    missing, refused = "", None
    try:
        files, root = fsspec.core.url_to_fs(url, **(options or {}))
    except ImportError as error:
        missing = error.name or "a package"
    except ValueError:
        raise StructureError(
            f"path={url!r}: fsspec does not know this protocol. Give a folder or a URL such as s3://."
        ) from None
    except Exception as error:
        refused = failed(url, error)
    else:
        files.invalidate_cache()
        return files, root
    if refused is not None:
        raise refused
    raise StructureError(
        f"path={url!r} needs {missing}, which is not installed; for s3://: pip install 'dpgb_dask[s3]'."
    )


def is_there(url: str, options: Mapping[str, Any] | None = None) -> bool:
    """Whether anything exists at a URL; the first request of whatever uses one, so it has a time limit.

    Raises
    ------
    StructureError
        If the store refuses access, cannot be reached, or does not answer within `WAIT_SECONDS`.
    """
    files, root = open_files(url, options)
    with saying(url):
        return bool(_within(WAIT_SECONDS, lambda: files.exists(root)))


def read(url: str) -> bytes:
    """Return the content of a file.

    Raises
    ------
    StructureError
        As `is_there`; or if there is no such file.
    """
    if not is_there(url):
        raise StructureError(f"{url!r} does not exist.")
    files, root = open_files(url)
    with saying(url):
        return bytes(files.cat_file(root))


def write(url: str, data: bytes) -> None:
    """Write a file by one request: an object store shows the new object once it is complete, and until then the old.

    Raises
    ------
    StructureError
        As `is_there`; or if it cannot be written.
    """
    is_there(url)
    files, root = open_files(url)
    with saying(url):
        files.pipe_file(root, data)


def put(path: Any, data: str | bytes) -> None:
    """Write a file at a path or a URL, whose readers see all of it or what was there before.

    Raises
    ------
    StructureError
        If it cannot be written.
    """
    raw = data.encode("utf-8") if isinstance(data, str) else data
    place = place_of(path)
    if isinstance(place, str):
        write(place, raw)
    else:
        write_given(path, place, raw)


def check_writable(url: str) -> None:
    """Write an empty file beside a URL, and remove it.

    Raises
    ------
    StructureError
        As `write`.
    """
    tried = f"{url.rstrip('/')}.try-{os.urandom(4).hex()}"
    write(tried, b"")
    files, root = open_files(tried)
    with suppress(Exception):  # who may only write leaves an empty file
        files.rm_file(root)


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    """Return what a call returns, or raise what it raises; TimeoutError if it takes longer, and goes on behind."""
    results: list[Any] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="dpgb-first-contact", daemon=True)
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    if not results:
        raise TimeoutError
    return results[0]


@contextmanager
def saying(url: str) -> Iterator[None]:
    """Replace a store's errors, whose text may hold anything, by ours.

    Raises
    ------
    StructureError
    """
    failure = None
    try:
        yield
    except StructureError:
        raise
    except Exception as error:
        failure = failed(url, error)
    if failure is None:
        return
    try:
        raise failure
    except StructureError:
        failure.__context__ = None
        raise


def failed(url: str, error: Exception) -> StructureError:
    """Return our error for one of a store."""
    if isinstance(error, FileNotFoundError):
        return StructureError(f"{url!r}: its bucket or folder does not exist. Make it first.")
    if isinstance(error, TimeoutError):
        return StructureError(
            f"{url!r} does not answer: its store said nothing for {WAIT_SECONDS:g} seconds. Look whether the address of"
            " the store is right (for s3://: AWS_ENDPOINT_URL) and reachable from here."
        )
    if isinstance(error, PermissionError):
        return StructureError(f"{url!r}: its store refuses access. {CREDENTIALS}")
    return StructureError(
        f"{url!r} cannot be used ({kind_of(error)}). Look at the address and the state of its store. {CREDENTIALS}"
    )
