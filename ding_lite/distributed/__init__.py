"""Distributed: the same pipelines on a Ray cluster. The rest of the package imports it only where a cluster is asked for."""

from ding_lite.distributed.clusters import Resources, connect

__all__ = ["Resources", "connect"]
