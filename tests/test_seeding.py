"""Random generators: the same seed and purpose give the same draws, and any other give others."""

import torch

from redx.seeding import generator


def test_draws_depend_on_seed_and_purpose_alone() -> None:
    def draw(seed: int, *purpose: object) -> list[float]:
        return torch.rand(4, generator=generator(seed, *purpose)).tolist()

    first = draw(0, "noise", "swap", 0.5)
    torch.manual_seed(9)  # the global state does not matter
    assert draw(0, "noise", "swap", 0.5) == first
    others = [draw(1, "noise", "swap", 0.5), draw(0, "noise", "swap", 0.25), draw(0, "noise"), draw(0)]
    assert all(other != first for other in others)
    assert len({tuple(other) for other in others}) == len(others)
