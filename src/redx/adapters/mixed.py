"""Adapters of one base in one model: every row of a batch runs through the adapter that it names, or through none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redx.adapters.base import BaseLM
from redx.adapters.checking import CONFIG, WEIGHTS, check_adapter, split_name
from redx.adapters.methods import METHODS, check_method, peft_settings
from redx.errors import RedxError
from redx.io.reading import read_json
from redx.io.safetensors_files import open_safetensors
from redx.models.backbones.hub import quiet_transformers

BASE = "__base__"  # peft's name for a row without an adapter


class AdapterStack:
    """A frozen base with K adapters that are switched per row.

    Parameters
    ----------
    base
        The frozen model. The stack wraps its modules; `close` gives the plain model back.

    Attributes
    ----------
    names
        Names of the adapters, in the order in which they were added.
    """

    def __init__(self, base: BaseLM) -> None:
        self.base, self.names = base, list[str]()
        self._slots: dict[str, str] = {}  # peft's names of adapters: a module may not have a dot in its name
        self._count = 0
        self._peft: Any = None

    @property
    def model(self) -> Any:
        """The model that runs: with adapters a PeftModel, without any the base itself."""
        return self.base.model if self._peft is None else self._peft

    @property
    def method(self) -> str | None:
        """Method of peft of all adapters, such as LORA; None without adapters."""
        configs = {} if self._peft is None else self._peft.peft_config
        return next((config.peft_type.value for config in configs.values()), None)

    @property
    def can_merge(self) -> bool:
        """Whether peft has merges of these adapters: of LoRA, unless its matrices consist of blocks."""
        blocks = self._peft is not None and any(
            config.to_dict().get("use_bdlora") for config in self._peft.peft_config.values()
        )
        return self.method == "LORA" and not blocks

    def add(self, name: str, folder: Path) -> None:
        """Add the checked adapter in a folder."""
        from peft import PeftModel, get_peft_model, set_peft_model_state_dict

        if name in self._slots:
            raise RedxError(f"There are two adapters called {name!r}; give one of them another name.")
        method = check_adapter(folder, self.base).method
        check_method(method, [self.method or method])
        settings = read_json(folder / CONFIG, dict)
        config = peft_settings(settings)
        slot = self._next_slot()
        unused = tuple(METHODS[method].training_only.values())
        with open_safetensors(folder / WEIGHTS) as file:
            names = [key for key in file.header if split_name(key)[1].partition(".")[0] not in unused]
            tensors = {key: file.get(key).float() for key in names}
        with quiet_transformers(), torch.random.fork_rng():
            if self._peft is None:
                self._peft = get_peft_model(self.base.model, config, adapter_name=slot)
            else:
                self._peft.add_adapter(slot, config)
            report: Any = set_peft_model_state_dict(self._peft, tensors, adapter_name=slot)
        assert isinstance(self._peft, PeftModel)
        self._peft.requires_grad_(False).eval().to(self.base.model.device)
        adapted = {key for key in self._peft.state_dict() if slot in key.split(".")}
        if report.unexpected_keys or len(adapted) != len(tensors):
            self._discard(slot)
            raise RedxError(f"{folder} does not fit {self.base.name}: its weights and its target modules differ.")
        self.names.append(name)
        self._slots[name] = slot

    def _next_slot(self) -> str:
        self._count += 1
        return f"adapter{self._count - 1}"

    def remove(self, name: str) -> None:
        """Remove an adapter; afterwards the model computes as if it had never been there."""
        if name not in self._slots:
            raise RedxError(f"There is no adapter {name!r}; choose one of {', '.join(self.names) or 'none'}.")
        self.names.remove(name)
        self._discard(self._slots.pop(name))

    def _discard(self, slot: str) -> None:
        others = [other for other in self._peft.peft_config if other != slot]
        if not others:
            return self.close()
        self._peft.set_adapter(others[0], inference_mode=True)  # peft warns if it has to choose another one itself
        self._peft.delete_adapter(slot)

    def close(self) -> None:
        """Give the base its plain modules back."""
        if self._peft is not None:
            self._peft.unload()
            self._peft, self.names, self._slots = None, [], {}

    @torch.inference_mode()
    def forward(self, rows: Sequence[str | None], tokens: Tensor, **options: Any) -> Any:
        """Run rows of tokens, each through the adapter that it names.

        Parameters
        ----------
        rows
            The adapter of every row; None for the base.
        tokens
            Tokens of equal length, (B, T).
        options
            Further arguments of the model, such as a cache.

        Returns
        -------
        ModelOutput
            What transformers returns, with `logits` of shape (B, T, C).
        """
        if self._peft is None:
            return self.base.model(input_ids=tokens, **options)
        chosen = [BASE if name is None else self._slots[name] for name in rows]
        if all(name == BASE for name in chosen):
            with self._peft.disable_adapter():
                return self._peft(input_ids=tokens, **options)
        if len(set(chosen)) == 1:  # faster than a mixed batch
            self._peft.set_adapter(chosen[0], inference_mode=True)
            return self._peft(input_ids=tokens, **options)
        return self._peft(input_ids=tokens, adapter_names=chosen, **options)

    def merge(
        self, name: str, method: str, weights: Sequence[float], adapters: Sequence[str], density: float = 0.5
    ) -> None:
        """Add a merge that peft computes of some adapters, as a further adapter."""
        slot = self._next_slot()
        options = {"density": density} if method not in ("linear", "cat", "svd") else {}
        names = [self._slots[adapter] for adapter in adapters]
        with torch.random.fork_rng():
            torch.manual_seed(0)  # dare drops weights at random
            self._peft.add_weighted_adapter(names, list(weights), slot, combination_type=method, **options)
        self._peft.requires_grad_(False)
        self.names.append(name)
        self._slots[name] = slot
