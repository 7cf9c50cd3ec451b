"""The rows `compose-K`: what K experts add to the backbone, against LoRA adapters in mixed batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from redx.config import BankConfig, BankId
from redx.model.model import Model, ModelInfo
from redx.models.backbones import hub
from redx.models.backbones.base import IdentityEncoder
from redx.models.backbones.language import FrozenLM
from redx.models.base import Base
from redx.models.expert import Expert
from redx.models.library import ExpertLibrary
from redx.models.router import NetworkRouter, TrainedRouter
from redx.seeding import generator
from redx.tasks import get_preset
from speed_rows.timing import BenchRow, BenchSettings, absent, alternate, share, spread

EXAMPLES, TOKENS, CLASSES, RANK = 64, 12, 99, 16
COUNTS, QUICK_COUNTS = (5, 50, 500, 4096), (5,)
SPARSE = 500  # with so many experts or more, only the two with the largest gates run
ADAPTERS = 50  # LoRA adapters that fit beside the backbone
PLAIN = BankId("residual", "plain")


def bench_compose(settings: BenchSettings) -> Iterator[BenchRow]:
    """Yield one row for every number of experts."""
    frozen = FrozenLM(hub.model_folder(settings.composed_backbone), (-1,), "last")
    tokens = torch.randint(5, 60, (EXAMPLES, TOKENS), generator=generator(0, "bench tokens"))
    h = torch.randn(EXAMPLES, frozen.hidden_size, generator=generator(0, "bench features"))
    missing = absent({"peft mixed batch": "peft"})
    for count in QUICK_COUNTS if settings.quick else COUNTS:
        model, top = make_model(count, frozen.hidden_size), 2 if count >= SPARSE else None
        sides: dict[str, Callable[[], object]] = {
            "ours": lambda model=model, top=top: model.predict(h, top=top),
            "backbone": lambda: forward(frozen.model, tokens),
        }
        adapters = min(count, ADAPTERS)
        if not missing:
            mixed, names = add_adapters(frozen.model, adapters)
            sides["peft mixed batch"] = lambda mixed=mixed, names=names: forward(mixed, tokens, adapter_names=names)
        seconds = alternate(sides, settings.repeat)
        experts = f"{count} experts of rank {RANK}" + (", the first two" if top else "")
        about = f"{experts}, on {EXAMPLES} texts of {TOKENS} tokens; ratio: our seconds over those of the backbone"
        row = share(f"compose-{count}", seconds, "backbone", about, missing=missing)
        if not missing:
            added = [peft - plain for peft, plain in zip(seconds["peft mixed batch"], seconds["backbone"], strict=True)]
            times = [theirs / ours for theirs, ours in zip(added, seconds["ours"], strict=True)]
            row.details.update({"adapters": adapters, "overhead of peft over ours": spread(times)})
        yield row


def make_model(count: int, width: int) -> Model:
    """Return a composed model of random low-rank experts with a linear router, which reads features."""
    draw = generator(0, "bench experts")

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw) * shape[0] ** -0.5

    base = Base(IdentityEncoder(), normal(width, CLASSES), torch.zeros(CLASSES), torch.zeros(width), torch.ones(width))
    names = tuple(f"e{index}" for index in range(count))
    bank = BankConfig(shape="lowrank", hidden=RANK)
    experts = {
        name: Expert({"domain": name}, {f"{PLAIN}.down": normal(width, RANK), f"{PLAIN}.up": normal(RANK, width)})
        for name in names
    }
    config = get_preset("features", "quick").model_copy(update={"banks": {PLAIN: bank}, "main": {"residual": "plain"}})
    library = ExpertLibrary(experts, base, config.banks, config.ownership)
    router = NetworkRouter(width, count, "linear")
    info = ModelInfo(names, tuple(map(str, range(CLASSES))), (-1,) * CLASSES, routed=names)
    return Model.assemble(info, config, lambda inputs: inputs, base, library, TrainedRouter(router.eval(), names))


def forward(model: Any, tokens: Tensor, **more: Any) -> None:
    """Run a language model."""
    with torch.inference_mode():
        model(input_ids=tokens, **more)


def add_adapters(model: Any, count: int) -> tuple[Any, list[str]]:
    """Return a copy of a model with LoRA adapters on its attention, and the adapter of every example of a batch."""
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(r=RANK, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], init_lora_weights=False)
    mixed = get_peft_model(copy.deepcopy(model), lora, adapter_name="a0")
    for index in range(1, count):
        mixed.add_adapter(f"a{index}", lora)
    return mixed.eval(), [f"a{index % count}" for index in range(EXAMPLES)]
