"""Processes: child processes that hold objects, run functions on them, and end with their parent process.

Internal: its names may change in any version.
"""

from ding_lite.processes.errors import WorkerDied, WorkerError, WorkerHangs, WorkerTraceback
from ding_lite.processes.hosts import Host, LocalHost, gather_results, load_states, release_hosts
from ding_lite.processes.pickles import Copied, LostValueError, Shared
from ding_lite.processes.restarts import Patience, ProcessHost, RestartingHost, Worker
from ding_lite.processes.worker_processes import WorkerProcess

__all__ = [
    "Copied",
    "Host",
    "LocalHost",
    "LostValueError",
    "Patience",
    "ProcessHost",
    "RestartingHost",
    "Shared",
    "Worker",
    "WorkerDied",
    "WorkerError",
    "WorkerHangs",
    "WorkerProcess",
    "WorkerTraceback",
    "gather_results",
    "load_states",
    "release_hosts",
]
