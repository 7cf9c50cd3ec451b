"""What little of a language model's base is trained, `h = trunk(bus(prefix(x)))`: three shapes.

    mlp      layers of Linear, GELU, LayerNorm on the pooled features of a text
    sum      a network on every token and the tokens before it, summed over the text, then as above
    blocks   the top transformer blocks and the final norm, then the mean over tokens: the papers' recipe

Every trunk gives h and, beside it, what else experts may read. Token states come as (N, T, E); a row of zeros is no
token. `fit` sets the bus from the shared subset before training.
"""

from __future__ import annotations

import copy
import itertools
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from redx.errors import RedxError

VALUE_SPAN = 3.3  # values of all classes together: of about unit size


class MLPTrunk(nn.Module):
    """Layers on pooled, standardised features."""

    def __init__(self, inputs: int, hidden: int, depth: int, beside: bool) -> None:
        super().__init__()
        self.width, self.beside = hidden, beside
        self.mean, self.scale = nn.Buffer(torch.zeros(inputs)), nn.Buffer(torch.ones(inputs))
        self.layers = mlp_layers([inputs, *[hidden] * depth])

    def fit(self, x: Tensor) -> None:  # (N, E)
        self.mean.copy_(x.mean(0))
        self.scale.copy_(x.std(0) + 1e-6)

    def forward(self, x: Tensor) -> Tensor:  # (N, E) -> (N, D) or (N, D + E)
        x = (x - self.mean) / self.scale
        h = self.layers(x)
        return torch.cat([h, x], -1) if self.beside else h


def mlp_layers(sizes: list[int]) -> nn.Sequential:
    """Linear, GELU, LayerNorm from width to width."""
    made: list[nn.Module] = []
    for inner, outer in itertools.pairwise(sizes):
        made += [nn.Linear(inner, outer), nn.GELU(), nn.LayerNorm(outer)]
    return nn.Sequential(*made)


class TokenSum(nn.Module):
    """A network on every token and the three before it, summed over the text to a number; h is its periodic code.

        S = Σ_t f(x_{t-3..t}),   v = w · S,   h = (cos ω_j v, sin ω_j v) for j = 1..32

    Answers that are numbers in order lie on the curve of h like beads on a string, so a linear classifier tells them
    apart, and v can be taught by regression. x are token states of unit size, softly whitened: early blocks hold what
    tells tokens apart in directions of little variance.
    """

    window = 4
    kept = 64  # directions of the token states that are read
    waves = 32
    period = 1.3 * VALUE_SPAN  # of the slowest wave

    def __init__(self, inputs: int, hidden: int, depth: int, beside: bool) -> None:
        super().__init__()
        self.width, self.beside = 2 * self.waves, beside
        kept = min(inputs, self.kept)
        self.mean, self.whiten = nn.Buffer(torch.zeros(inputs)), nn.Buffer(torch.zeros(inputs, kept))
        sizes = [self.window * kept, *[hidden] * depth]
        self.token = nn.Sequential(
            *(each for pair in itertools.pairwise(sizes) for each in (nn.Linear(*pair), nn.GELU()))
        )
        self.value = nn.Linear(hidden, 1)

    def fit(self, x: Tensor) -> None:  # (N, T, E)
        rows = _unit(x[(x != 0).any(-1)]).double()
        self.mean.copy_(rows.mean(0))
        values, vectors = torch.linalg.eigh(torch.cov(rows.T))
        self.whiten.copy_((vectors / (values.clamp_min(0) + 1).sqrt())[:, -self.whiten.shape[1] :])

    def sum(self, x: Tensor) -> Tensor:  # (N, T, E) -> (N, H)
        tokens = (x != 0).any(-1)
        x = (_unit(x) - self.mean) @ self.whiten * tokens[..., None]
        x = nn.functional.pad(x, (0, 0, self.window - 1, 0))
        seen = x.unfold(1, self.window, 1).flatten(2)  # (N, T, 4 · kept)
        said = self.token(seen[tokens])
        return said.new_zeros(len(x), said.shape[1]).index_add(0, tokens.nonzero()[:, 0], said)

    def code(self, value: Tensor) -> Tensor:  # (N,) -> (N, D)
        angles = value[:, None] * torch.arange(1, self.waves + 1, device=value.device) * (2 * torch.pi / self.period)
        return torch.cat([angles.cos(), angles.sin()], -1)

    def forward(self, x: Tensor) -> Tensor:  # (N, T, E) -> (N, D) or (N, D + H)
        summed = self.sum(x)
        h = self.code(self.value(summed)[:, 0])
        return torch.cat([h, summed], -1) if self.beside else h


def _unit(x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


class TopBlocks(nn.Module):
    """The top blocks of the language model itself, with their pretrained weights to start from."""

    def __init__(self, folder: Path, config: Any, count: int) -> None:
        super().__init__()
        self.width = config.hidden_size
        self.model = load_top_blocks(folder, config, count)

    def fit(self, x: Tensor) -> None:
        """Nothing to set: the blocks have norms of their own."""

    def forward(self, x: Tensor) -> Tensor:  # (N, T, D) -> (N, D)
        tokens = (x != 0).any(-1)
        states = self.model(inputs_embeds=x, attention_mask=tokens.long(), use_cache=False).last_hidden_state
        return token_mean(states.float(), tokens)


def token_mean(x: Tensor, tokens: Tensor) -> Tensor:
    """The mean over the tokens that are there: (N, T, D) and (N, T) to (N, D)."""
    return (x * tokens[..., None]).sum(1) / tokens.sum(1, keepdim=True)


def load_top_blocks(folder: Path, config: Any, count: int) -> nn.Module:
    """The last `count` blocks and the final norm of a decoder, without the rest of it."""
    from safetensors import safe_open
    from transformers import AutoModel

    depth = config.num_hidden_layers
    if not count < depth:
        raise RedxError(f"{folder.name} has {depth} blocks; train fewer than that with --train-blocks.")
    small = copy.deepcopy(config)
    for key, value in list(vars(small).items()):  # such as layer_types
        if isinstance(value, list) and len(value) == depth:
            setattr(small, key, value[-count:])
    small.num_hidden_layers = count
    small.vocab_size = 1  # the tokens are embedded already
    small.pad_token_id = small.bos_token_id = small.eos_token_id = None
    model = AutoModel.from_config(small, dtype=torch.float32)
    if not isinstance(getattr(model, "layers", None), nn.ModuleList) or not hasattr(model, "norm"):
        raise RedxError(f"The blocks of {folder.name} ({config.model_type}) cannot be trained; choose --trunk mlp.")
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - safetensors offers keys() alone
                place = re.fullmatch(r"(?:model\.)?(?:layers\.(\d+)|(norm))\.(.+)", name)
                if place and place[2]:
                    found[f"norm.{place[3]}"] = file.get_tensor(name).float()
                elif place and int(place[1]) >= depth - count:
                    found[f"layers.{int(place[1]) - depth + count}.{place[3]}"] = file.get_tensor(name).float()
    lacking = [name for name in model.load_state_dict(found, strict=False).missing_keys if "embed" not in name]
    if lacking:
        raise RedxError(f"The weights in {folder} lack {lacking[0]}; take the folder anew from its source.")
    model.embed_tokens = nn.Identity()
    return model
