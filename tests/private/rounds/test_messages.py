"""Messages of rounds: every part arrives as it was sent, travels once, and is asked for if it is lacking."""

import pickle
import zlib
from dataclasses import replace

import numpy as np
import pytest
from private.cases import ALL, KINDS, model_of, queries_of

from dpgb_dask.contracts.model import Splits
from dpgb_dask.contracts.queries import GradientQuery
from dpgb_dask.errors import LackingPartsError
from dpgb_dask.losses import GRAD_ONE, TABLE_SIZE, TableGradient
from dpgb_dask.losses.gradients import logistic_gradient
from dpgb_dask.private.rounds.messages import Parts, Sender, _pickled


def content(value):
    """What a value holds, in a form that compares by ==; arrays by type, shape and bytes."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, tuple):
        return tuple(content(item) for item in value)
    if hasattr(value, "__dataclass_fields__"):
        fields = (content(getattr(value, name)) for name in value.__dataclass_fields__)
        return type(value).__name__, *fields
    return value


def check_read(read, model, query):
    assert content(read.model) == content(model)
    assert content(read.query) == content(query)
    assert read.query.digest() == query.digest()


def carried(packed):
    """The names of the parts that a message carries, and whether each goes on from one known before."""
    _, _, sent = pickle.loads(packed)
    return {name: bool(base) for name, (base, _) in sent.items()}


class Conversation:
    """A sender and some shards' parts, all of which read every message that is asked."""

    def __init__(self, n_shards=1):
        self.sender, self.shards = Sender(), [Parts() for _ in range(n_shards)]

    def ask(self, model, query):
        """Ask as rounds do, and return what travelled."""
        message = self.sender.message(model, query)
        packed = [self.sender.packed(message)]
        try:
            self.read(packed[0], model, query)
        except LackingPartsError:
            assert self.sender.forget()
            packed.append(self.sender.packed(message))
            self.read(packed[1], model, query)
        self.sender.answered(message)
        return packed

    def read(self, packed, model, query):
        for shard in self.shards:
            check_read(shard.read(packed), model, query)


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_model_and_query_arrive_as_they_are(kind, name):
    query = queries_of(kind, 2)[name]
    talk = Conversation()
    for model in (model_of(kind, n_trees=0), model_of(kind), model_of(kind, 1, 0, 5)):
        talk.ask(model, query)
        (packed,) = talk.ask(model, query)
        assert not carried(packed)


@pytest.mark.parametrize("n_scores", [1, 3])
def test_tables_of_any_whole_numbers_arrive_as_they_are(n_scores):
    ends = np.iinfo(np.int32)
    rng = np.random.default_rng(0)
    model = model_of("multiclass" if n_scores > 1 else "binary")
    query, talk = queries_of("binary")["main"], Conversation()
    talk.ask(model, query)
    for values in (
        [ends.min, ends.max],
        [0, 127, -128, 254, 255, -127, 128],
        [-1, 0, 1],
        np.arange(ends.min, ends.max, 1 << 24),
    ):
        tables = tuple(rng.choice(values, table.shape).astype(np.int32) for table in model.tables)
        # beside the tables before, which are anything too, and alone
        for beside, talking in ((True, talk), (False, Conversation())):
            (packed,) = talking.ask(replace(model, tables=tables), query)
            assert carried(packed)["tables"] is beside


@pytest.mark.parametrize("kind", ["binary", "numeric"])
def test_gradients_of_any_table_arrive_as_they_are(kind):
    """Also where neighbouring entries lie as far apart as steps can."""
    rng = np.random.default_rng(0)
    shape = (TABLE_SIZE,) if kind == "numeric" else (2, TABLE_SIZE)
    query = queries_of(kind)["main"]
    for ends in ((-GRAD_ONE, GRAD_ONE), (-130, 130), (0, 1)):
        g, h = (rng.integers(low, ends[1] + 1, shape) for low in (ends[0], 0))
        gradient = TableGradient(kind, (g << 32) + h)
        Conversation().ask(model_of(kind), replace(query, gradient=gradient))


@pytest.mark.parametrize("shape", [(0,), (5,), (2, 3, 4)])
def test_whole_numbers_of_64_bits_arrive_as_they_are(shape):
    ends = np.iinfo(np.int64)
    rng = np.random.default_rng(0)
    for values in ([ends.min, ends.max], [-1, 0, 1], [1 << 31, 1 << 32, -(1 << 32)], [7]):
        array = rng.choice(np.array(values, np.int64), shape)
        assert content(pickle.loads(_pickled(array))) == content(array)


def test_the_table_of_log_loss_takes_less_than_two_kilobytes():
    assert len(zlib.compress(_pickled(logistic_gradient(1.0, 1.0)))) < 2000


def test_a_part_travels_once():
    talk, model, queries = Conversation(), model_of("binary"), queries_of("binary")
    (first,) = talk.ask(model, queries["main"])
    assert set(carried(first)) == {"bins", "tables", "pairs", "trees", "gradient", "leaves"}
    # the same content in other objects
    (packed,) = talk.ask(model_of("binary"), queries_of("binary")["pairs"])
    assert not carried(packed)
    other = replace(model, tables=model_of("binary", 1).tables)
    (packed,) = talk.ask(other, queries["main"])
    assert carried(packed) == {"tables": True, "leaves": False}  # the query before had no leaves
    (packed,) = talk.ask(other, queries["choice"])
    assert carried(packed) == {"gradient": False}
    assert len(packed) < len(first)


def grown(kind, *numbers):
    """Models that differ only by how many of the same trees they have."""
    largest = model_of(kind, n_trees=max(numbers))
    for n in numbers:
        splits = largest.trees.splits.part(0, n)
        used = int(splits.mask_of.max()) + 1
        trees = replace(
            largest.trees,
            splits=replace(splits, masks=splits.masks[:used]),
            value=largest.trees.value[:, :n],
        )
        yield replace(largest, trees=trees)


def test_a_query_of_no_feature_travels():
    """Shards refuse it: they know how many features there are."""
    query = replace(queries_of("binary")["main"], leaf_of_bin=(), n_leaves=())
    Conversation().ask(model_of("binary"), query)


@pytest.mark.parametrize("kind", KINDS)
def test_tables_with_other_bins_travel_whole(kind):
    talk, query, model = Conversation(), queries_of(kind)["main"], model_of(kind)
    talk.ask(model, query)
    fewer = tuple(table[:-1] for table in model.tables)
    (packed,) = talk.ask(replace(model, tables=fewer), query)
    assert carried(packed) == {"tables": False}


@pytest.mark.parametrize("kind", KINDS)
def test_of_trees_that_grow_only_the_new_ones_travel(kind):
    talk, query = Conversation(), queries_of(kind)["trees"]
    models = list(grown(kind, 2, 30, 31, 31, 35))
    few, many = (len(model.trees.splits.masks) for model in models[:2])
    assert 0 < few < many
    travelled = [talk.ask(model, query)[0] for model in models]
    assert [carried(packed) for packed in travelled[2:]] == [{"trees": True}, {}, {"trees": True}]
    assert len(travelled[2]) < len(travelled[1]) / 2
    # other trees are no continuation
    (packed,) = talk.ask(model_of(kind, 1, n_trees=40), query)
    assert carried(packed)["trees"] is False


def test_the_same_new_trees_after_other_ones_are_other_trees():
    query, new = queries_of("binary")["trees"], model_of("binary", 9, n_trees=2).trees
    plain = Splits.plain(new.splits.feature, new.splits.threshold)
    parts = []
    for seed in (0, 1):
        sender, model = Sender(), model_of("binary", seed, n_trees=3)
        bare = Splits.plain(model.trees.splits.feature, model.trees.splits.threshold)
        few = replace(model, trees=replace(model.trees, splits=bare))
        sender.message(few, query)
        more = replace(few, trees=few.trees.with_more(plain, new.value))
        parts.append(sender.message(more, query).parts["trees"])
    assert content(parts[0].rest) == content(parts[1].rest)
    assert parts[0].digest != parts[1].digest


def test_masks_that_no_tree_names_yet_travel_too():
    talk, query = Conversation(), queries_of("binary")["trees"]
    few, many = grown("binary", 4, 6)
    all_masks = replace(few.trees.splits, masks=many.trees.splits.masks)
    assert len(all_masks.masks) > len(few.trees.splits.masks)
    for model in (few, replace(few, trees=replace(few.trees, splits=all_masks)), many):
        talk.ask(
            model, query
        )  # the trees of the last are those that the shard has, and two that name the masks


def test_who_lacks_parts_is_asked_again_with_all():
    talk, query = Conversation(2), queries_of("binary")["trees"]
    models = list(grown("binary", 2, 4, 6, 8, 10))
    talk.ask(models[0], query)
    talk.shards[1] = Parts()  # a new worker, or a shard made again
    part, whole = talk.ask(models[1], query)
    assert carried(part) == {"trees": True}
    assert set(carried(whole)) == {"bins", "tables", "pairs", "trees", "gradient"}
    missed = talk.shards.pop()  # it misses a round
    talk.ask(models[2], query)
    talk.shards.append(missed)
    part, whole = talk.ask(models[3], query)
    assert carried(part) == {"trees": True}
    assert carried(whole)["trees"] is False
    talk.ask(models[4], query)


def test_a_message_twice_or_late_changes_nothing():
    talk, query = Conversation(), queries_of("binary")["trees"]
    models = list(grown("binary", 2, 4, 6, 8))
    (old,) = talk.ask(models[0], query)
    (last,) = talk.ask(models[1], query)
    talk.read(last, models[1], query)  # twice
    talk.read(old, models[0], query)  # late: it carries all that it names
    assert len(talk.ask(models[2], query)) == 2  # the parts of the last message are gone
    with pytest.raises(LackingPartsError):
        talk.shards[0].read(last)  # late: its base is gone
    assert len(talk.ask(models[3], query)) == 1


def test_a_shard_keeps_the_parts_of_the_last_message_alone():
    talk, query = Conversation(), queries_of("binary")["main"]
    for seed in range(4):
        talk.ask(model_of("binary", seed), query)
    assert len(talk.shards[0]._held) == 6
    assert isinstance(query, GradientQuery)
    assert not pickle.loads(pickle.dumps(talk.shards[0]))._held


def test_the_question_is_the_same_whichever_parts_travel_and_another_for_another_model():
    sender, query = Sender(), queries_of("binary")["main"]
    message, other = (sender.message(model_of("binary", seed), query) for seed in (0, 1))
    shard = Parts()
    whole = shard.read(message.packed()).question
    part = shard.read(message.packed({part.digest for part in message.parts.values()})).question
    assert whole == part == message.question
    assert whole != other.question
