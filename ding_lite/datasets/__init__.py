"""Datasets: recorded episodes in files, written by a run and read for offline RL."""

from ding_lite.datasets.chunks import DatasetError
from ding_lite.datasets.epochs import Epochs as Epochs
from ding_lite.datasets.epochs import EpochSampler
from ding_lite.datasets.hdf5 import read_d4rl
from ding_lite.datasets.minari_files import read_minari, write_minari
from ding_lite.datasets.offline_datasets import OfflineDataset
from ding_lite.datasets.opening import open_dataset
from ding_lite.datasets.scores import REFERENCE_RETURNS, normalized_score
from ding_lite.datasets.writers import DatasetWriter, write_dataset

__all__ = [
    "REFERENCE_RETURNS",
    "DatasetError",
    "DatasetWriter",
    "EpochSampler",
    "OfflineDataset",
    "normalized_score",
    "open_dataset",
    "read_d4rl",
    "read_minari",
    "write_dataset",
    "write_minari",
]
