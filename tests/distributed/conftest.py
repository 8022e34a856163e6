"""One Ray cluster for all tests of this folder that need one: it takes seconds to start."""

import importlib.util
import sys

import cloudpickle
import pytest

from ding_lite.distributed import connect

ON_A_CLUSTER = ("test_ray_", "test_pages")
collect_ignore_glob = [] if importlib.util.find_spec("ray") else [f"{name}*.py" for name in ON_A_CLUSTER]


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.name.startswith(ON_A_CLUSTER) and item.path.parent.name == "distributed":
            item.add_marker(pytest.mark.ray)


@pytest.fixture(scope="session")
def spilled(tmp_path_factory):
    """The folder to which a full object store writes."""
    return tmp_path_factory.mktemp("spilled")


@pytest.fixture(scope="session")
def cluster(spilled):
    """The address of a cluster of two CPUs on this machine."""
    import ray

    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=200 * 2**20,
        object_spilling_directory=str(spilled),
        logging_level="warning",
        log_to_driver=False,
    )
    connect(keep_workers=4)
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


@pytest.fixture(autouse=True)
def _by_value(request):
    """Workers of the cluster cannot import the files of the tests."""
    if request.node.get_closest_marker("ray"):
        cloudpickle.register_pickle_by_value(sys.modules[request.module.__name__])
