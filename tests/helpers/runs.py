"""Runs small enough for tests: the toy with a few epochs."""

from typing import Any

from redx.config import RunConfig
from redx.tasks import get_preset


def changes(task: str = "toy", epochs: int = 60) -> dict[str, Any]:
    """What turns the quick preset into one of well under a second."""
    config: RunConfig = get_preset(task, "quick")

    def shorten(settings: dict[str, Any]) -> dict[str, Any]:
        return settings | {"training": settings["training"] | {"epochs": epochs}}

    dumped = config.model_dump()
    return {
        "banks": {name: shorten(bank) for name, bank in dumped["banks"].items()},
        "router": shorten(dumped["router"]),
        "study": "none",
    }
