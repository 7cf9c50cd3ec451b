"""Models that the tests of this package may change."""

from pathlib import Path

import pytest

import redx
from helpers.models import LoadedModel
from helpers.own_data import draw_clouds

QUESTIONS = ["What is 37 plus 12?", "What is 2 plus 3?", "What is 50 plus 49?", "What is 11 plus 20?"]


@pytest.fixture(params=["clouds", pytest.param("addition", marks=pytest.mark.slow)])
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    """A model on features, or one on texts, with inputs for it."""
    folder: Path = request.getfixturevalue(f"{request.param}_copy")
    inputs = QUESTIONS if request.param == "addition" else draw_clouds(8, seed=1)["x"]
    return LoadedModel(redx.load(folder), inputs)
