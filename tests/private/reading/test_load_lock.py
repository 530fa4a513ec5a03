"""One chunk is loaded at a time, and the chunks held at the same time fit into the room together."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
from waiting import LONGEST

from dpgb_dask.private.reading.load_lock import OBJECT_BYTES, bytes_of, end_turn, in_turn


@pytest.mark.parametrize(("size", "most"), [(30, 3), (60, 1), (200, 1)])
def test_chunks_that_are_held_at_once_have_room_together(size, most):
    lock, held, seen = threading.Lock(), [], []

    def work(k):
        end_turn(size)
        with lock:
            held.append(k)
            seen.append(len(held))
        time.sleep(0.01)
        with lock:
            held.remove(k)
        return k

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda k: in_turn(100, work, k), range(24)))
    assert found == list(range(24))
    assert max(seen) <= most


def test_a_chunk_that_fails_gives_its_room_back():
    def fail(size):
        end_turn(size)
        raise KeyError

    for size in (0, 1000):
        with pytest.raises(KeyError):
            in_turn(10, fail, size)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(in_turn, 10, int).result(LONGEST) == 0
    end_turn(5)  # does nothing without a turn


def test_bytes_of_a_chunk():
    frame = pd.DataFrame({"a": np.zeros(10), "b": pd.Series(["text"] * 10, dtype=object)})
    assert bytes_of(frame) == 80 + 10 * (8 + OBJECT_BYTES)
    assert bytes_of(((np.zeros(3), np.zeros(2, np.uint8)), None, np.zeros(4))) == 24 + 2 + 32
