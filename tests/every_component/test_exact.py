"""Every recipe gives the same model, bit for bit, whatever the form of the rows and the back end.

Each recipe runs in some of the settings; over all recipes, every pair of a form and a back end occurs.
"""

from itertools import product

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster
from forms import FORMS, SCHEMA, some_rows
from plans import DISTINCT, PLANS
from thinned import thinned

from dpgb_dask import DPGBClassifier
from dpgb_dask.released.export import model_to_dict
from dpgb_dask.testing import SeededNoise

NAMES = DISTINCT
LOCAL = list(
    product(["numpy", "pandas", "dask7", "dask50", "frame", "zarr"], [1, 2], [1 << 14, 300])
)
QUICK = NAMES[::5]  # of the fits on a cluster: each form once
ON_CLUSTER = ["numpy", "dask1", "dask7", "dask50", "frame", "zarr"]


@pytest.fixture(scope="module")
def rows():
    return some_rows()


@pytest.fixture(scope="module")
def cluster():
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def model_of(name, form, rows, tmp, **settings):
    x, y = FORMS[form](*rows, tmp)
    rounds = []
    with dask.config.set({f"dpgb-dask.{key}": value for key, value in settings.items()}):
        clf = DPGBClassifier(
            epsilon=4.0,
            delta=1e-6,
            schema=SCHEMA,
            recipe=PLANS[name].brief(),
            noise=SeededNoise(3),
            random_state=5,
            callbacks=[lambda label, *_: rounds.append(label)],
        ).fit(x, y)
    assert len(rounds) <= 17
    return model_to_dict(clf.model_)


@pytest.fixture(scope="module")
def reference(rows, tmp_path_factory):
    models = {}

    def of(name):
        if name not in models:
            tmp = tmp_path_factory.mktemp("reference")
            models[name] = model_of(name, "numpy", rows, tmp, backend="local", **{"n-threads": 1})
        return models[name]

    return of


@pytest.mark.parametrize("name", thinned(NAMES, every=3))
def test_recipe_gives_the_same_model_in_this_process(name, rows, reference, tmp_path):
    k = NAMES.index(name)
    for form, threads, block_rows in (LOCAL[k % len(LOCAL)], LOCAL[(7 * k + 5) % len(LOCAL)]):
        settings = {"backend": "local", "n-threads": threads, "block-rows": block_rows}
        folder = tmp_path / f"{form}-{threads}-{block_rows}"  # both may be of one form
        folder.mkdir()
        assert model_of(name, form, rows, folder, **settings) == reference(name), form


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES]
)
@pytest.mark.usefixtures("cluster")
def test_recipe_gives_the_same_model_on_a_cluster(name, rows, reference, tmp_path):
    form = ON_CLUSTER[NAMES.index(name) % len(ON_CLUSTER)]
    assert model_of(name, form, rows, tmp_path, backend="tasks") == reference(name)


def test_every_form_meets_every_back_end():
    local = {LOCAL[k % len(LOCAL)][0] for k in range(len(NAMES))}
    tasks = {ON_CLUSTER[k % len(ON_CLUSTER)] for k in range(len(NAMES))}
    assert local | {"dask1"} == set(FORMS)
    quick = {ON_CLUSTER[NAMES.index(name) % len(ON_CLUSTER)] for name in QUICK}
    assert tasks == quick == set(ON_CLUSTER)


@pytest.mark.parametrize("name", thinned(NAMES, every=6))
def test_another_key_gives_another_model(name, rows, reference, tmp_path):
    x, y = FORMS["numpy"](*rows, tmp_path)
    clf = DPGBClassifier(
        epsilon=4.0, delta=1e-6, schema=SCHEMA, recipe=PLANS[name].brief(),
        noise=SeededNoise(4), random_state=5,
    ).fit(x, y)  # fmt: skip
    score = np.asarray(clf.decision_function(x))
    assert np.isfinite(score).all()
    assert model_to_dict(clf.model_) != reference(name)  # so that the tests above can fail
