"""Trunks: the trained part of an encoder, from what the frozen part outputs to the features h.

    mlp      layers of Linear, GELU, LayerNorm on the pooled features of a text
    sum      a network on every token and the tokens before it, summed over the text, then coded as waves
    blocks   the top transformer blocks and the final norm, then the mean over tokens

A trunk returns h, followed by the further features that experts may read. Token states have the shape (N, T, E); a row
of zeros is padding. `fit` sets the standardisation from the shared subset before training.
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
from redx.io.safetensors_files import open_safetensors
from redx.models.values import PERIOD, code_values


class MLPTrunk(nn.Module):
    """Layers of Linear, GELU and LayerNorm on standardised features.

    Parameters
    ----------
    inputs
        Number of features E that it reads.
    hidden
        Width D of the layers and of h.
    depth
        Number of layers.
    append_features
        Whether the output is h followed by the standardised input, (N, D + E), instead of h alone, (N, D).

    Examples
    --------
    >>> import torch
    >>> MLPTrunk(8, hidden=16, depth=2, append_features=True)(torch.zeros(5, 8)).shape
    torch.Size([5, 24])
    """

    def __init__(self, inputs: int, hidden: int, depth: int, append_features: bool) -> None:
        super().__init__()
        self.width, self.append_features = hidden, append_features
        self.mean, self.scale = nn.Buffer(torch.zeros(inputs)), nn.Buffer(torch.ones(inputs))
        self.layers = mlp_layers([inputs, *[hidden] * depth])

    def fit(self, x: Tensor) -> None:
        """Take mean and deviation of every feature from training data, (N, E)."""
        self.mean.copy_(x.mean(0))
        self.scale.copy_(x.std(0) + 1e-6)

    def forward(self, x: Tensor) -> Tensor:  # (N, E) -> (N, D) or (N, D + E)
        x = (x - self.mean) / self.scale
        h = self.layers(x)
        return torch.cat([h, x], -1) if self.append_features else h


def mlp_layers(sizes: list[int]) -> nn.Sequential:
    """Return layers of Linear, GELU and LayerNorm of these widths, from input to output."""
    layers: list[nn.Module] = []
    for inner, outer in itertools.pairwise(sizes):
        layers += [nn.Linear(inner, outer), nn.GELU(), nn.LayerNorm(outer)]
    return nn.Sequential(*layers)


class TokenSum(nn.Module):
    """A network on every token and the three before it, summed over the text to one number v; h codes v as waves.

        S = Σ_t f(x_{t-3..t}),   v = w · S,   h = (cos ω_j v, sin ω_j v) for j = 1..32

    Where the classes are numbers in order, a linear classifier on h separates them, and v can be trained by regression.
    The token states x are scaled to unit size and softly whitened, since the directions in which early blocks differ
    between tokens have little variance.

    Parameters
    ----------
    inputs
        Width E of the token states.
    hidden
        Width H of the network f and of S.
    depth
        Number of layers of f.
    append_features
        Whether the output is h followed by S, (N, D + H), instead of h alone, (N, D); D is 64.

    Examples
    --------
    >>> import torch
    >>> TokenSum(8, hidden=16, depth=1, append_features=False)(torch.ones(5, 3, 8)).shape
    torch.Size([5, 64])
    """

    window = 4  # tokens that f reads at once
    kept = 64  # principal directions of the token states that f reads
    waves = 32
    period = PERIOD  # of the slowest wave

    def __init__(self, inputs: int, hidden: int, depth: int, append_features: bool) -> None:
        super().__init__()
        self.width, self.append_features = 2 * self.waves, append_features
        kept = min(inputs, self.kept)
        self.mean, self.whiten = nn.Buffer(torch.zeros(inputs)), nn.Buffer(torch.zeros(inputs, kept))
        sizes = [self.window * kept, *[hidden] * depth]
        self.token = nn.Sequential(
            *(layer for pair in itertools.pairwise(sizes) for layer in (nn.Linear(*pair), nn.GELU()))
        )
        self.value = nn.Linear(hidden, 1)

    def fit(self, x: Tensor) -> None:
        """Take mean and whitening from the token states of training data, (N, T, E)."""
        states = _unit_size(x[(x != 0).any(-1)]).double()
        self.mean.copy_(states.mean(0))
        values, vectors = torch.linalg.eigh(torch.cov(states.T))
        self.whiten.copy_((vectors / (values.clamp_min(0) + 1).sqrt())[:, -self.whiten.shape[1] :])

    def sum(self, x: Tensor) -> Tensor:
        """Return S, (N, H), for token states (N, T, E)."""
        tokens = (x != 0).any(-1)
        x = (_unit_size(x) - self.mean) @ self.whiten * tokens[..., None]
        x = nn.functional.pad(x, (0, 0, self.window - 1, 0))
        windows = x.unfold(1, self.window, 1).flatten(2)  # (N, T, 4 · kept)
        outputs = self.token(windows[tokens])
        return outputs.new_zeros(len(x), outputs.shape[1]).index_add(0, tokens.nonzero()[:, 0], outputs)

    def code(self, value: Tensor) -> Tensor:
        """Return h, (N, D), for values v, (N,)."""
        return code_values(value, self.waves)

    def forward(self, x: Tensor) -> Tensor:  # (N, T, E) -> (N, D) or (N, D + H)
        summed = self.sum(x)
        h = self.code(self.value(summed)[:, 0])
        return torch.cat([h, summed], -1) if self.append_features else h


def _unit_size(x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


class TopBlocks(nn.Module):
    """The top blocks of the language model itself, trained from their pretrained weights; h is the mean over tokens.

    Parameters
    ----------
    folder
        Folder of the language model, with its weights as safetensors.
    config
        Its configuration, as transformers reads it.
    count
        Number of top blocks.
    """

    def __init__(self, folder: Path, config: Any, count: int) -> None:
        super().__init__()
        self.width = config.hidden_size
        self.model = load_top_blocks(folder, config, count)

    def fit(self, x: Tensor) -> None:
        """Do nothing: the blocks have layer norms of their own."""

    def forward(self, x: Tensor) -> Tensor:  # (N, T, D) -> (N, D)
        tokens = (x != 0).any(-1)
        states = self.model(inputs_embeds=x, attention_mask=tokens.long(), use_cache=False).last_hidden_state
        return token_mean(states.float(), tokens)


def token_mean(x: Tensor, tokens: Tensor) -> Tensor:
    """Return the mean of token states (N, T, D) over the tokens that the mask (N, T) marks: (N, D)."""
    return (x * tokens[..., None]).sum(1) / tokens.sum(1, keepdim=True)


def load_top_blocks(folder: Path, config: Any, count: int) -> nn.Module:
    """Return the last `count` blocks and the final norm of a decoder, with their pretrained weights."""
    from transformers import AutoModel

    depth = config.num_hidden_layers
    if not count < depth:
        raise RedxError(f"{folder.name} has {depth} blocks; train fewer than that with --train-blocks.")
    small = copy.deepcopy(config)
    for key, value in list(vars(small).items()):  # settings with one value per block, such as layer_types
        if isinstance(value, list) and len(value) == depth:
            setattr(small, key, value[-count:])
    small.num_hidden_layers = count
    small.vocab_size = 1  # the tokens are embedded already
    small.pad_token_id = small.bos_token_id = small.eos_token_id = None
    model = AutoModel.from_config(small, dtype=torch.float32)
    if not isinstance(getattr(model, "layers", None), nn.ModuleList) or not hasattr(model, "norm"):
        raise RedxError(f"The blocks of {folder.name} ({config.model_type}) cannot be trained; choose --trunk mlp.")
    weights: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with open_safetensors(path, advice="download the folder anew from its source") as file:
            for name in file.header:
                match = re.fullmatch(r"(?:model\.)?(?:layers\.(\d+)|(norm))\.(.+)", name)
                if match and match[2]:
                    weights[f"norm.{match[3]}"] = file.get(name).float()
                elif match and int(match[1]) >= depth - count:
                    weights[f"layers.{int(match[1]) - depth + count}.{match[3]}"] = file.get(name).float()
    missing = [name for name in model.load_state_dict(weights, strict=False).missing_keys if "embed" not in name]
    if missing:
        raise RedxError(f"The weights in {folder} lack {missing[0]}; download the folder anew from its source.")
    model.embed_tokens = nn.Identity()
    return model
