"""One template world for all tests of this folder."""

import pytest

import redx
from faults.worlds import Worlds


@pytest.fixture(scope="session")
def worlds(adapters: redx.Run, tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """Copies of a small finished run, its experts, a checkpoint and a cache, and of a run of adapters."""
    return Worlds(tmp_path_factory.mktemp("faults"), adapters.folder)
