"""Data sets of the benches: how they are read and split, and how predictions on them are judged."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score, root_mean_squared_error
from sklearn.model_selection import train_test_split

from dpgb_dask import Schema

BASES = {  # files of sets with other names
    "cover_type": "covtype_93k",
    "adult_48842": "adult",
    "adult_codes": "adult",
    "adult_1000": "adult",
}
SLICE_ROWS = 1000
COVER_TYPES = tuple(range(1, 8))  # the seven classes of the documentation of Covertype


class Split(NamedTuple):
    schema: Schema
    train: pd.DataFrame
    test: pd.DataFrame
    y_train: np.ndarray
    y_test: np.ndarray

    @property
    def regression(self) -> bool:
        return self.schema.target.type == "numeric"


Scores = dict[str, float]


def read(folder: Path, name: str) -> tuple[Schema, pd.DataFrame, np.ndarray]:
    """Read a data set: its public schema, features and target."""
    base = BASES.get(name, name)
    frame = pd.read_parquet(folder / f"{base}.parquet")
    schema = Schema.load(folder / f"{base}.schema.json")
    if name in {"adult", "adult_1000"}:
        frame = frame[~frame["is_test"].astype(bool)]
    if name == "give_me_some_credit":
        frame = frame.dropna()
    if name == "cover_type":
        schema = Schema(schema.features, classes=COVER_TYPES, target="cover_type")
    return schema, frame[list(schema.names)], frame[schema.target.name].to_numpy()


def names_in(folder: Path) -> list[str]:
    """Return the sets that a folder holds: NAME.parquet with NAME.schema.json."""
    return sorted(
        p.stem for p in folder.glob("*.parquet") if p.with_suffix(".schema.json").is_file()
    )


def has_several_classes(folder: Path | None, name: str) -> bool:
    if name == "cover_type":
        return True
    path = folder and folder / f"{BASES.get(name, name)}.schema.json"
    return bool(path and path.is_file()) and len(Schema.load(path).target.classes) > 2


def load(folder: Path, name: str, seed: int) -> Split:
    """Read a data set and split it 80/20; of adult_1000, 1,000 rows are to train on and all others to test on."""
    if name == "synthetic":
        return synthetic(seed)
    schema, X, y = read(folder, name)
    if name == "adult_1000":
        rows = np.random.default_rng(seed).permutation(len(y))
        slice_, rest = rows[:SLICE_ROWS], rows[SLICE_ROWS:]
        return Split(schema, X.iloc[slice_], X.iloc[rest], y[slice_], y[rest])
    return Split(schema, *train_test_split(X, y, test_size=0.2, random_state=seed))


def synthetic(seed: int) -> Split:
    """4,000 rows of two features for a machine without the data: shows that the script runs, nothing else."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.uniform(-1, 1, 4000), "b": rng.choice(["u", "v"], 4000)})
    y = (rng.random(4000) < 1 / (1 + np.exp(-4 * X["a"].to_numpy()))).astype(np.int8)
    schema = Schema({"a": (-1, 1), "b": ["u", "v"]}, classes=[0, 1])
    return Split(schema, *train_test_split(X, y, test_size=0.2, random_state=seed))


def of_numbers(split: Split, predicted: np.ndarray) -> Scores:
    return {"rmse": float(root_mean_squared_error(split.y_test, np.asarray(predicted)))}


def of_probabilities(split: Split, table: np.ndarray) -> Scores:
    classes = np.asarray(split.schema.target.classes)
    scores = {
        "accuracy": float(accuracy_score(split.y_test, classes[table.argmax(axis=1)])),
        "log_loss": float(log_loss(split.y_test, table, labels=classes)),
    }
    if len(classes) == 2:
        return {"auc": float(roc_auc_score(split.y_test, table[:, 1]))} | scores
    return scores
