"""Processes: child processes that hold objects and run functions on them, and that end with the process that started them."""

from ding_lite.processes.errors import WorkerDied, WorkerError, WorkerHangs, WorkerTraceback
from ding_lite.processes.hosts import Host, LocalHost, answers, give_back
from ding_lite.processes.pickles import Kept
from ding_lite.processes.restarts import ProcessHost
from ding_lite.processes.worker_processes import WorkerProcess

__all__ = [
    "Host",
    "Kept",
    "LocalHost",
    "ProcessHost",
    "WorkerDied",
    "WorkerError",
    "WorkerHangs",
    "WorkerProcess",
    "WorkerTraceback",
    "answers",
    "give_back",
]
