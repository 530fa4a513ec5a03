"""Where compiled kernels are kept, and who compiles them: one process; others wait, and read what it has written.

Kernels are kept in the folder that ``NUMBA_CACHE_DIR`` names, else beside the package, else in the user's cache folder.
A folder that can only be read, such as one of a container's image, is read all the same. If none can be written to, a
kernel is compiled in memory, in every process anew; the logger ``dpgb_dask`` says so once.

Numba compares a kernel's own source file with that of the kept kernel; but a kernel also contains the kernels that it
calls and constants, from other files. Here all these files are compared. Numba's index also tells processors and its
own versions apart: a folder from another machine is no error, its kernels are compiled anew.
"""

import hashlib
import inspect
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.runtime.nrt import rtsys

from dpgb_dask import losses

fcntl: Any = None
with suppress(ImportError):  # not on POSIX
    fcntl = import_module("fcntl")

NAME = "dpgb_dask"
LONGEST_WAIT = 300.0  # seconds for another process; then it is taken to hang, and the kernel is compiled here too
PAUSE = 0.05  # seconds between two looks

logger = logging.getLogger("dpgb_dask")


class KernelCache:
    """The kept versions of one kernel, as Numba's dispatcher asks for them."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._module = function.__module__
        self._stores: tuple[_Store, ...] | None = None
        self._folders: tuple[Path, ...] = ()

    @property
    def cache_path(self) -> str | None:
        """Folder that new versions are written to; None if they stay in memory."""
        return next((str(path) for path in folders() if is_writable(path)), None)

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Return the version for a signature; None if there is none, and it is this process's turn to compile it."""
        found = self._read(signature, target)
        if found is None and _TURN.take(self, self.cache_path, self._module):
            found = self._read(signature, target)  # another process has written it meanwhile
            if found is not None:
                _TURN.end(self)
        if found is None and not _QUIET:
            _say_once(
                f"Kernels are compiled, which takes up to a minute. {_where(self.cache_path)}"
            )
        return found

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep a version that was compiled, and end this process's turn."""
        try:
            for path, store in self._each():
                if is_writable(path):
                    store.save_overload(signature, compiled)
                    return
        except OSError as error:  # such as a full disk: the kernel is in memory, and works
            if not _QUIET:
                logger.warning("Compiled kernels cannot be kept: %s.", error.strerror)
        finally:
            _TURN.end(self)

    def enable(self) -> None:
        """Do nothing: the cache is always on."""

    def disable(self) -> None:
        """Do nothing: the cache is always on."""

    def flush(self) -> None:
        """Forget the kept versions, as ``recompile`` of a dispatcher asks."""
        for path, store in self._each():
            if is_writable(path):
                store.flush()

    def _read(self, signature: Any, target: Any) -> Any:
        for _, store in self._each():
            try:
                found = store.load_overload(signature, target)
            except Exception:  # whatever a damaged file raises: it is as if it were not there
                continue
            if found is not None:
                return found
        return None

    def _each(self) -> Iterator[tuple[Path, "_Store"]]:
        if self._stores is None or self._folders != folders():
            self._folders = folders()
            self._stores = tuple(_Store(self._function, path) for path in self._folders)
        return zip(self._folders, self._stores, strict=True)


class _Store(FunctionCache):
    """Numba's cache of one function, in a folder of ours."""

    def __init__(self, function: Callable[..., Any], folder: Path) -> None:
        self._impl_class = partial(_Impl, folder)  # type: ignore[assignment]
        super().__init__(function)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the version for a signature, or None.

        Numba would first load all that it can compile, SciPy's linear algebra among it: half a second in each process.
        A kept version of a row loop needs Numba's memory management alone.
        """
        rtsys.initialize(target_context)
        return self._load_overload(sig, target_context)


class _Impl(CompileResultCacheImpl):
    def __init__(self, folder: Path, function: Callable[..., Any]) -> None:
        self._lineno = function.__code__.co_firstlineno
        self._locator = _Locator(folder, function)
        name = f"{function.__module__.removeprefix('dpgb_dask.')}.{function.__qualname__}"
        self._filename_base = self.get_filename_base(name, "")


class _Locator:
    """What Numba asks for about the place of a function's kept versions."""

    def __init__(self, folder: Path, function: Callable[..., Any]) -> None:
        self._folder = folder
        self._function = function
        self._py_file = function.__code__.co_filename

    def get_cache_path(self) -> str:
        return str(self._folder)

    def ensure_cache_path(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)

    def get_source_stamp(self) -> str:
        return _stamp(_sources_of(self._function))

    def get_disambiguator(self) -> str:
        return str(self._function.__code__.co_firstlineno)


def use(folder: Path) -> None:
    """Keep kernels in a folder from here on, as if ``NUMBA_CACHE_DIR`` had named it."""
    vars(numba.config)["CACHE_DIR"] = str(folder.absolute())


def folders() -> tuple[Path, ...]:
    """Return the folders that kept kernels are read from, in this order."""
    if given := vars(numba.config)["CACHE_DIR"]:  # NUMBA_CACHE_DIR, or `use`
        return (Path(given) / _folder_name(),)
    return _own_folders()


@lru_cache
def _own_folders() -> tuple[Path, ...]:
    # not in the package: what is left there after it is uninstalled would be a package without anything in it
    beside = Path(__file__).parents[2] / "__pycache__" / NAME
    user = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(user):  # XDG's rule: such a name is as good as none
        user = os.path.expanduser("~/.cache")
    if not os.path.isabs(user):  # there is no home
        return (beside,)
    return beside, Path(user) / NAME / _folder_name()


@lru_cache
def _folder_name() -> str:
    """Return a name that different versions of this package and of Numba, which may share a folder, have apart."""
    return f"{NAME}-{_stamp(_common_sources())[:16]}-numba{numba.__version__}"


@lru_cache
def _common_sources() -> tuple[str, ...]:
    """Return the files that any kernel may contain parts of."""
    return tuple(
        str(path)
        for folder in (Path(__file__).parent, Path(inspect.getfile(losses)).parent)
        for path in sorted(folder.glob("*.py"))
    )


def _sources_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the files that a kernel may contain parts of: of the kernels that its file uses, and the common ones."""
    used = {
        value.py_func.__code__.co_filename
        for value in function.__globals__.values()
        if hasattr(value, "py_func")
    }
    return (*_common_sources(), *sorted(used | {function.__code__.co_filename}))


@lru_cache
def _stamp(files: tuple[str, ...]) -> str:
    """Return a hash of the texts of some files; where they are does not matter."""
    sink = hashlib.sha256()
    for name in files:
        sink.update(hashlib.sha256(Path(name).read_bytes()).digest())
    return sink.hexdigest()


@lru_cache
def is_writable(folder: Path) -> bool:
    """Whether files can be made in a folder, which is made if it is not there; looked up once."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


@lru_cache  # so that each text is said once in a process
def _say_once(text: str) -> None:
    logger.info(text)
    for tell in LISTENERS:
        tell(COMPILING)


@lru_cache
def _where(path: str | None) -> str:
    if path is not None:
        return f"They are kept in {path}."
    text = (
        "No folder for them can be written to, so that every process compiles them anew. Name one by NUMBA_CACHE_DIR,"
        " or fill one in advance: dpgb-dask warm --cache-dir DIR."
    )
    logger.warning(text)
    return text


COMPILING = "compiling kernels: up to a minute"
# called with `COMPILING` before the first kernel is compiled in this process
LISTENERS: list[Callable[[str], None]] = []


_QUIET: list[None] = []  # one for each that asks rows now


@contextmanager
def quietly() -> Iterator[None]:
    """Compile without a word meanwhile: which kernels rows need depends on them, such as on how many there are.

    Privacy
    -------
    Everything that a fit logs or shows is released. What it compiles before it reads rows follows from public facts.
    """
    _QUIET.append(None)
    try:
        yield
    finally:
        _QUIET.pop()


class _Turn:
    """The right to compile the kernels of one module: a lock on a file, which ends with the process that holds it.

    Numba compiles in one thread of a process at a time, and calls the cache from there.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._owner: KernelCache | None = None

    def take(self, owner: KernelCache, folder: str | None, module: str) -> bool:
        """Wait for the turn; return whether it was taken. Without a folder or locks in it, all compile at once.

        A kernel that is compiled while another one is, which calls it, takes no turn: it has that of the other one.
        """
        if folder is None or fcntl is None or self._file is not None:
            return False
        file = None
        try:
            file = open(Path(folder) / f"{module}.lock", "ab")  # noqa: SIM115 - open until `end`
            end = time.monotonic() + LONGEST_WAIT
            while not _locked(file) and time.monotonic() < end:
                time.sleep(PAUSE)
        except OSError:  # this file system has no locks
            if file is not None:
                file.close()
            return False
        self._file, self._owner = file, owner
        return True

    def end(self, owner: KernelCache) -> None:
        """Let other processes have their turn, if it was taken by this kernel."""
        if self._file is not None and self._owner is owner:
            self._file.close()
            self._file = self._owner = None


def _locked(file: IO[bytes]) -> bool:
    """Lock a file; return whether it worked. Another process that holds the lock is no error."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


_TURN = _Turn()
