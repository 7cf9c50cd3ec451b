"""One template world for all tests of this folder."""

import pytest

from faults.worlds import Worlds


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """Copies of a small finished run, its experts, a checkpoint and a cache."""
    return Worlds(tmp_path_factory.mktemp("faults"))
