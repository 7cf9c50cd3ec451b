"""A model as a folder, RUN/seed-N: its files read into a `Model`, and a `Model` written to such files with a card."""

from __future__ import annotations

from pathlib import Path

from redx.config import RunConfig
from redx.io import files
from redx.models import encoder
from redx.models.base import Base
from redx.models.composed import Model
from redx.models.persistence import _read_fixed_banks, read_figures, read_info, read_library, read_router
from redx.tasks import get_task
from redx.tasks.arithmetic.decomposers import Decomposer, restore_decomposer


def load_seed(folder: Path, config: RunConfig) -> Model:
    """The trained modules of one seed, as a model; experts are read when they are first asked."""
    facts = read_info(folder)
    base = Base.of(files.read_tensors(folder / "base.safetensors"), encoder.build_encoder(config))
    library = read_library(folder, config, base, facts)
    fixed, own_router = _read_fixed_banks(folder, config, base, library)
    return Model(
        facts=facts,
        config=config,
        read=get_task(config.task).read,
        base=base,
        experts=library,
        router=None if config.router.shape == "keys" else read_router(folder, config, base, facts),
        fixed=fixed,
        own_router=own_router,
        decomposer=None if config.decomposer == "none" else lambda: _decomposer(folder, config),
        figures=read_figures(folder.parent),
        home=folder,
    )


def _decomposer(folder: Path, config: RunConfig) -> Decomposer:
    tensors = files.read_tensors(folder / "decomposer.safetensors")
    return restore_decomposer(config.decomposer, tensors, config.backbone)
