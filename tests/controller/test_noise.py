import os
import stat

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from dpgb_dask.contracts.plan import Budget
from dpgb_dask.controller import noise
from dpgb_dask.controller.noise import (
    FitKey,
    KeyStream,
    SecretNoise,
    canonical,
    erase_key,
    read_key,
    write_key,
)
from dpgb_dask.controller.release import Controller
from dpgb_dask.errors import LedgerUnavailableError, ResumeError

KEY = bytes(range(32))
SUMS = np.array([1, 2, 3], np.int64)


def test_secret_noise_gives_fresh_keys():
    source = SecretNoise()
    assert len({source.fit_key() for _ in range(5)}) == 5


def test_key_stream_is_chacha20_little_endian():
    expected = Cipher(ChaCha20(KEY, bytes(16)), mode=None).encryptor().update(bytes(80))
    stream, words = KeyStream(KEY), np.empty(10, np.uint64)
    stream.read(words[:3])
    stream.read(words[3:])
    assert words.astype("<u8").tobytes() == expected


def test_key_stream_reads_many_words_as_it_reads_few():
    many, few = np.empty(100_000, np.uint64), np.empty(100_000, np.uint64)
    KeyStream(KEY).read(many)
    stream = KeyStream(KEY)
    for part in np.array_split(few, 7):
        stream.read(part)
    assert np.array_equal(many, few)


def test_key_stream_refuses_to_repeat(monkeypatch):
    monkeypatch.setattr(noise, "STREAM_BYTES", 80)
    stream = KeyStream(KEY)
    stream.read(np.empty(10, np.uint64))
    with pytest.raises(RuntimeError, match="used up"):
        stream.read(np.empty(1, np.uint64))


def four(stream):
    words = np.empty(4, np.uint64)
    stream.read(words)
    return tuple(words)


def test_fit_key_streams_are_bound_to_query_and_sums():
    key = FitKey(KEY)

    def words(query, sums):
        return four(key.stream(query, sums))

    assert words(b"q" * 32, SUMS) == words(b"q" * 32, SUMS.copy())
    streams = [
        words(b"q" * 32, SUMS),
        words(b"r" * 32, SUMS),
        words(b"q" * 32, SUMS + 1),
        words(b"q" * 32, SUMS[:2]),
        four(FitKey(KEY[::-1]).stream(b"q" * 32, SUMS)),
    ]
    assert len(set(streams)) == len(streams)


def test_canonical_sums_do_not_depend_on_memory_layout():
    wide = np.zeros((3, 2), np.int64)
    wide[:, 0] = SUMS
    assert canonical(wide[:, 0]) == canonical(SUMS) == canonical(SUMS.astype(">i8"))


def test_fit_key_labels_are_separate():
    key = FitKey(KEY)
    derived = {
        key.derive(label) for label in ("noise", "seal", "fingerprint", "rows", "commitment")
    }
    assert len(derived) == 5
    assert KEY not in derived
    assert key.seal("a", b"bc") != key.seal("ab", b"c")


def test_fit_key_shows_nothing():
    key = FitKey(KEY)
    assert repr(key) == str(key) == "FitKey(<secret>)"
    assert KEY.hex() not in key.commitment


def test_key_file_is_the_owners_alone_and_goes_away(tmp_path):
    path = tmp_path / "fits" / "a.key"
    write_key(path, KEY)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert read_key(path) == KEY
    link = tmp_path / "link"  # shows what is in the file when its name is removed
    link.hardlink_to(path)
    erase_key(path)
    assert not path.exists()
    assert link.read_bytes() == bytes(32)
    erase_key(path)  # may be repeated
    with pytest.raises(ResumeError, match="cannot be read"):
        read_key(path)


def test_write_key_refuses_an_existing_file_and_keeps_it(tmp_path):
    path = tmp_path / "a.key"
    path.write_bytes(b"other")
    with pytest.raises(LedgerUnavailableError, match="cannot be written"):
        write_key(path, KEY)
    assert path.read_bytes() == b"other"


def test_a_key_of_which_a_part_is_written_is_not_left(tmp_path, monkeypatch):
    """Of a disk that fills up in its midst: without an error, and a fit of a part of its key cannot be resumed."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:20]))
    with pytest.raises(LedgerUnavailableError, match=r"No space left.* nothing is charged"):
        write_key(tmp_path / "a.key", KEY)
    assert not list(tmp_path.iterdir())


def test_no_source_but_the_secret_one_is_private():
    """Whatever a source says of itself, its author may know the key."""

    class Known:
        private = True

        def fit_key(self):
            return b"0" * 32

    class Derived(SecretNoise):
        def fit_key(self):
            return b"0" * 32

    for source, private in (
        (Known(), False),
        (Derived(), False),
        (SecretNoise(), True),
        (None, True),
    ):
        controller = Controller.reserve(
            budget=Budget(epsilon=1.0, delta=1e-6), plan_digest=b"p", public_seed=0, noise=source
        )
        assert controller.private == private
        assert controller.fit_id.startswith("seeded-") != private
