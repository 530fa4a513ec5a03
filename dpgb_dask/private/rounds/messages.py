"""Messages of rounds: a model and a query in parts that go by their hashes, so that only new parts travel.

A message names each of its parts by a hash of the content, and carries those that the workers are not known to have. A
shard keeps the parts of the last message that it read. If it lacks one that a message names but does not carry, it says
so, and all are asked again with every part: so a new worker, one that missed rounds, an answer given twice and a
message that comes late are one case, and a model that is not the one that was meant cannot arise. A part may travel as
the hash of the one before and what it has beyond it: trees grow at their end, and tables mostly go on as they went
(`packing`).

Privacy
-------
Messages hold released values and public options alone, and go to workers that are trusted with rows. What a worker says
it lacks depends on the messages that reached it, not on rows.
"""

import hashlib
import io
import pickle
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.model import Model, Splits, TreeEnsemble, extends
from dpgb_dask.contracts.queries import GradientQuery, MainSumsQuery, Query
from dpgb_dask.errors import ClusterError, LackingPartsError
from dpgb_dask.installed import OWN
from dpgb_dask.private.rounds.packing import (
    PackedLines,
    PackedPartitions,
    PackedTables,
    pack_lines,
    pack_partitions,
    pack_tables,
    unpack_lines,
    unpack_partitions,
    unpack_tables,
)

NO_BASE = b""

# hash of the part that this one goes on from, or `NO_BASE`; what follows, packed
Sent = tuple[bytes, bytes]


def other_version(workers: Sequence[str], own: str = OWN) -> ClusterError:
    """Return the error for workers of another version than the fit's own process."""
    return ClusterError(
        f"Workers have {' or '.join(workers)}; the fit's own process has {own}. Both need the same: start the cluster"
        " with the image, or in the environment, of that process. A fit that had begun can be resumed then."
    )


def lacks_parts() -> LackingPartsError:
    """Return the error of a worker that a message does not give all it names."""
    return LackingPartsError("A worker lacks parts of the question, and was not sent them.")


# ---- the fit's own process -------------------------------------------------------------------------------------------


class MessagePart(NamedTuple):
    """A part of a message: value and hash; if it goes on from the last message's part, that one's hash and the rest."""

    value: Any
    digest: bytes
    base: bytes = NO_BASE
    rest: Any = None


class Message(NamedTuple):
    """One round's message: what names its parts, and the parts by name."""

    head: bytes
    parts: Mapping[str, MessagePart]

    @property
    def question(self) -> bytes:
        """A hash that identifies what is asked, whichever parts travel."""
        return _digest(self.head)

    def packed(self, known: Set[bytes] = frozenset()) -> bytes:
        """Return the message with all parts but the known ones, which are given by their hashes."""
        sent: dict[str, Sent] = {}
        for name, part in self.parts.items():
            if part.digest not in known:
                base = part.base if part.base in known else NO_BASE
                value = part.rest if base else _PACKED.get(name, _as_it_is)(part.value)
                sent[name] = base, zlib.compress(_pickled(value))
        return pickle.dumps((OWN, self.head, sent))


class Sender:
    """Makes the messages of a fit, and remembers which parts all shards have."""

    def __init__(self) -> None:
        self._last: dict[str, MessagePart] = {}
        self._known: frozenset[bytes] = frozenset()

    def message(self, model: Model, query: Query) -> Message:
        """Return the message that asks a query at a model."""
        values = {
            "bins": model.bins,
            "tables": model.tables,
            "pairs": model.pairs,
            "trees": model.trees,
        }
        if isinstance(query, GradientQuery):
            values["gradient"] = query.gradient
        if isinstance(query, MainSumsQuery):
            values["leaves"] = query.leaf_of_bin
        parts = {name: self._part(name, value) for name, value in values.items()}
        self._last |= parts
        file = io.BytesIO()
        _Namer(file, {id(value): name for name, value in values.items()}).dump((model, query))
        digests = {name: part.digest for name, part in parts.items()}
        return Message(pickle.dumps((digests, zlib.compress(file.getvalue()))), parts)

    def packed(self, message: Message) -> bytes:
        """Return a message without the parts that all shards have."""
        return message.packed(self._known)

    def answered(self, message: Message) -> None:
        """Note that all shards have read a message: each keeps the parts of the last one."""
        self._known = frozenset(part.digest for part in message.parts.values())

    def forget(self) -> bool:
        """Note that some shard may lack parts; return whether that was not known before."""
        knew, self._known = bool(self._known), frozenset()
        return knew

    def _part(self, name: str, value: Any) -> MessagePart:
        """Return a part; what is the same object as in the last message is not looked at again."""
        last = self._last.get(name)
        if last is not None and last.value is value:
            return last
        if last is not None and isinstance(value, TreeEnsemble) and last.value.n_trees:
            old: TreeEnsemble = last.value
            if extends(value, old):
                if value.n_trees == old.n_trees and len(value.splits.masks) == len(
                    old.splits.masks
                ):
                    return last._replace(value=value)
                rest = _trees_after(old, value)
                return MessagePart(value, _digest(last.digest + _pickled(rest)), last.digest, rest)
        digest = _digest(pickle.dumps(value))
        if last is not None and name == "tables" and _same_shapes(value, last.value):
            return MessagePart(value, digest, last.digest, pack_tables(value, last.value))
        return MessagePart(value, digest)


class _Namer(pickle.Pickler):
    """Pickles a model and a query; of the parts only their names."""

    def __init__(self, file: io.BytesIO, names: Mapping[int, str]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._names = names

    def persistent_id(self, obj: Any) -> str | None:
        """Return the name of a part."""
        return self._names.get(id(obj))


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _pickled(value: Any) -> bytes:
    file = io.BytesIO()
    _Packer(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


class _Packer(pickle.Pickler):
    """Pickles int64 arrays, as gradients have them, by their upper and lower halves.

    The table of log-loss holds a g and an h in each entry, and both are smooth: 10.6 KB become 1.5.
    """

    def reducer_override(self, obj: Any) -> Any:
        """Return how an array is made again; other objects are pickled as they are."""
        if type(obj) is not np.ndarray or obj.dtype != np.int64 or not obj.size:
            return NotImplemented
        halves = np.stack([obj >> 32, obj]).astype(np.int32)  # keeps the lower 32 bits of each
        return _whole_of, (obj.shape, pack_lines(halves.ravel(), np.array([obj.size] * 2)))


def _whole_of(shape: tuple[int, ...], halves: PackedLines) -> NDArray[np.int64]:
    """Return the array that `_Packer` pickled."""
    sizes = np.array([prod(shape)] * 2)
    upper, lower = unpack_lines(halves, sizes).reshape(2, *shape)
    return (upper.astype(np.int64) << 32) + lower.view(np.uint32)


_PACKED: Mapping[str, Callable[[Any], Any]] = {"tables": pack_tables, "leaves": pack_partitions}


def _as_it_is(value: Any) -> Any:
    return value


def _same_shapes(some: Sequence[NDArray[Any]], others: Sequence[NDArray[Any]]) -> bool:
    return [part.shape for part in some] == [part.shape for part in others]


def _trees_after(old: TreeEnsemble, new: TreeEnsemble) -> TreeEnsemble:
    """Return the trees and masks that ``new`` has beyond ``old``; its nodes name masks by their place in ``new``."""
    splits, n = new.splits, old.n_trees
    masks = splits.masks[len(old.splits.masks) :]
    rest = Splits(splits.feature[n:], splits.threshold[n:], splits.mask_of[n:], masks)
    return TreeEnsemble(rest, np.ascontiguousarray(new.value[:, n:]))


def _trees_with(old: TreeEnsemble, rest: TreeEnsemble) -> TreeEnsemble:
    """Return the trees of which ``rest`` are those after ``old``."""
    pairs: Iterable[Any] = zip(old.splits.arrays, rest.splits.arrays, strict=True)
    splits = Splits(*(np.concatenate(both) for both in pairs))
    return TreeEnsemble(splits, np.concatenate([old.value, rest.value], axis=1))


# ---- workers ---------------------------------------------------------------------------------------------------------


class Read(NamedTuple):
    """A message that was read: what is asked, and the hash that identifies it."""

    model: Model
    query: Query
    question: bytes


class Parts:
    """The parts that a shard has: those of the last message that it read. They are not pickled with the shard."""

    def __init__(self) -> None:
        self._held: Mapping[bytes, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Parts, ()

    def read(self, packed: bytes) -> Read:
        """Read a message.

        Raises
        ------
        LackingPartsError
            If it names a part that it does not carry and that this shard does not have.
        ClusterError
            If the fit's own process has another version: this one's sums may have another sensitivity. A worker that
            comes in mid-fit has not been asked before.
        """
        head, sent = _opened(packed)
        digests, body = pickle.loads(head)
        held = self._held  # only replaced as a whole, as threads may read at the same time
        parts = {name: _found(digest, sent.get(name), held) for name, digest in digests.items()}
        model, query = _Reader(io.BytesIO(zlib.decompress(body)), parts).load()
        self._held = {digests[name]: part for name, part in parts.items()}
        return Read(model, query, _digest(head))


class _Reader(pickle.Unpickler):
    """Unpickles what `_Namer` pickled."""

    def __init__(self, file: io.BytesIO, parts: Mapping[str, Any]) -> None:
        super().__init__(file)
        self._parts = parts

    def persistent_load(self, pid: str) -> Any:
        """Return a part by its name."""
        return self._parts[pid]


@lru_cache(maxsize=2)
def _opened(packed: bytes) -> tuple[bytes, dict[str, tuple[bytes, Any]]]:
    """Return the head of a message and the parts that it carries; shards of one process unpack them only once."""
    asking, head, sent = pickle.loads(packed)
    if asking != OWN:
        raise other_version([OWN], asking)
    return head, {
        name: (base, pickle.loads(zlib.decompress(part))) for name, (base, part) in sent.items()
    }


def _found(digest: bytes, sent: tuple[bytes, Any] | None, held: Mapping[bytes, Any]) -> Any:
    """Return a part: one that is held, or as it was sent."""
    if digest in held:
        return held[digest]
    if sent is not None and (sent[0] == NO_BASE or sent[0] in held):
        return _unpacked(sent[1], held.get(sent[0]))
    raise lacks_parts()


def _unpacked(sent: Any, base: Any) -> Any:
    """Return a part from what travelled of it, and the one that it goes on from, if it does."""
    if isinstance(sent, PackedTables):
        return unpack_tables(sent, base)
    if isinstance(sent, PackedPartitions):
        return unpack_partitions(sent)
    return sent if base is None else _trees_with(base, sent)
