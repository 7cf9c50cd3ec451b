"""A model on an encoder of one's own, trained once a module and copied for every test."""

from __future__ import annotations

import copy

import pytest

import redx
from helpers.own_encoder import composed_model


@pytest.fixture(scope="module")
def trained() -> redx.Model:
    return composed_model()


@pytest.fixture
def model(trained: redx.Model) -> redx.Model:
    return copy.deepcopy(trained)
