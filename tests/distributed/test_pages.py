"""The blocks of pages that need a cluster."""

from pathlib import Path

import pytest
from pages import run_blocks

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"


@pytest.mark.usefixtures("cluster")
def test_the_blocks_of_the_page_about_clusters_run(capsys):
    run_blocks(DOCS / "cluster.md")
    assert "asks for 512 CPU for each worker, and no machine of the cluster has that" in capsys.readouterr().out
