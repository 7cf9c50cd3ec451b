"""Move the networks of a composed model to a device; features come from the CPU, and outputs go back to it."""

from __future__ import annotations

from redx.io.hardware import usable_device
from redx.models.composed import Model


def place_model(model: Model, device: str) -> None:
    """Let the experts, heads and routers of a model compute on a device.

    The base is moved where it encodes (`redx.training.features.embed_split`).

    Parameters
    ----------
    model
        The model; its networks are moved in place.
    device
        `cpu` or `cuda`; where there is no CUDA device the model stays on the CPU.
    """
    device = usable_device(device)
    if device == "cpu":
        return
    for expert in model.experts:
        for bank_id, config in model.experts.banks.items():
            expert.bank(bank_id, config, model.base).to(device)
        if model.config.has_ownership:
            expert.ownership(model.experts.ownership, model.base).scorer.to(device)
    for bank in model.fixed.values():
        bank.to(device)
    for router in filter(None, (model.router, *model.joint_routers.values())):
        router.network.to(device)
