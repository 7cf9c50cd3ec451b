"""Methods of peft whose adapters can be chosen per row of a batch: their settings and the shapes of their tensors.

Other methods of peft 0.21 either refuse a mixed batch (DoRA, AdaLoRA) or silently run every row through one adapter
(VeRA, IA3, LoHa, HiRA, …).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from redx.errors import RedxError
from redx.schema import StrictConfig

MAX_RANK = 4096
Rank = Annotated[int, Field(ge=1, le=MAX_RANK, strict=True)]
Shapes = dict[str, tuple[int, ...]]  # by the end of a tensor's name
Filled = BeforeValidator(lambda value: {} if value is None else value)


class MethodSettings(StrictConfig, extra="ignore"):
    """Settings of an adapter that decide its shapes; peft reads the others.

    Attributes
    ----------
    config_class
        Name of peft's class of settings.
    start
        The setting that says how weights begin; peft is told to begin plainly, since the weights are read from a file.
    training_only
        Settings that change training and not what a trained adapter computes, with the tensors that belong to them.
    """

    config_class: ClassVar[str]
    start: ClassVar[str] = "init_weights"
    training_only: ClassVar[dict[str, str]] = {}

    def rank(self, module: str) -> int | None:
        """Return the rank of a matrix's adapter; None for a method without ranks."""
        raise NotImplementedError

    def shapes(self, module: str, outputs: int, inputs: int, has_bias: bool) -> Shapes:
        """Return the shapes of the tensors that adapt one linear layer.

        Parameters
        ----------
        module
            Name of the layer in the base.
        outputs, inputs, has_bias
            Its size, and whether it has a bias.
        """
        raise NotImplementedError


class _Blocks(StrictConfig):
    """Settings of BD-LoRA: which matrices consist of blocks on their diagonal."""

    target_modules_bd_a: Annotated[tuple[str, ...], BeforeValidator(lambda value: value or ())] = ()
    target_modules_bd_b: Annotated[tuple[str, ...], BeforeValidator(lambda value: value or ())] = ()
    nblocks: Rank = 1
    match_strict: bool = True


class LoraSettings(MethodSettings):
    """LoRA, and its variants that a mixed batch computes."""

    config_class: ClassVar[str] = "LoraConfig"
    start: ClassVar[str] = "init_lora_weights"
    training_only: ClassVar[dict[str, str]] = {
        "velora_config": "lora_velora_embed",
        "monteclora_config": "lora_monteclora_sampler",
        "eva_config": "",
    }

    r: Rank
    rank_pattern: Annotated[dict[str, Rank], Filled] = {}
    lora_alpha: float = 8
    alpha_pattern: Annotated[dict[str, float], Filled] = {}
    use_rslora: bool = False
    lora_bias: bool = False
    use_bdlora: _Blocks | None = None

    def rank(self, module: str) -> int:
        """Return the rank of a matrix's adapter, as peft finds it."""
        from peft.utils.other import get_pattern_key

        key = get_pattern_key(list(self.rank_pattern), module)
        return self.rank_pattern.get(key, self.r)

    def shapes(self, module: str, outputs: int, inputs: int, has_bias: bool) -> Shapes:
        """Return the shapes of A and B."""
        rank = self.rank(module)
        down, up = (rank, inputs), (outputs, rank)
        if self.use_bdlora:
            blocks = self.use_bdlora.nblocks
            if any(name in module for name in self.use_bdlora.target_modules_bd_a):
                down = (rank, _divide(inputs, blocks, "nblocks", module))
            elif any(name in module for name in self.use_bdlora.target_modules_bd_b):
                up = (outputs, _divide(rank, blocks, "nblocks", module))
        return {"lora_A.weight": down, "lora_B.weight": up} | ({"lora_B.bias": (outputs,)} if self.lora_bias else {})


class RoadSettings(MethodSettings):
    """RoAd: outputs are rotated in pairs and scaled."""

    config_class: ClassVar[str] = "RoadConfig"

    variant: Literal["road_1", "road_2", "road_4"] = "road_1"
    group_size: Annotated[int, Field(ge=2, le=2**20, multiple_of=2)] = 64

    def rank(self, module: str) -> None:
        """Return None: there is no rank."""

    def shapes(self, module: str, outputs: int, inputs: int, has_bias: bool) -> Shapes:
        """Return the shapes of angles and scales."""
        _divide(outputs, self.group_size, "group_size", module)
        size = {"road_1": outputs // 2, "road_2": outputs, "road_4": 2 * outputs}[self.variant]
        return {"road_theta": (size,), "road_alpha": (size,)}


class GloraSettings(MethodSettings):
    """GLoRA: `weight + weight * A + B` and `bias + bias * D + E + weight @ C`; paths that are off are zeros."""

    config_class: ClassVar[str] = "GloraConfig"

    r: Rank = 8
    config_A_B: Literal["lora", "vector", "constant", "none"] = "lora"
    config_C: Literal["lora", "vector", "none"] = "lora"
    config_D_E: Literal["vector", "constant", "none"] = "constant"

    def rank(self, module: str) -> int:
        """Return the rank."""
        return self.r

    def shapes(self, module: str, outputs: int, inputs: int, has_bias: bool) -> Shapes:
        """Return the shapes of all five paths."""
        paths: dict[str, tuple[str, tuple[int, ...]]] = {
            "A": (self.config_A_B, (outputs, inputs)),
            "B": (self.config_A_B, (outputs, inputs)),
            "C": (self.config_C if has_bias else "none", (inputs, 1)),
            "D": (self.config_D_E if has_bias else "none", (outputs,)),
            "E": (self.config_D_E if has_bias else "none", (outputs,)),
        }
        shapes: Shapes = {}
        for path, (kind, whole) in paths.items():
            if kind == "lora":
                shapes |= {f"glora_{path}.Xd": (whole[0], self.r), f"glora_{path}.Xu": (self.r, whole[1])}
            elif kind == "none":
                shapes[f"glora_{path}.zeros"] = whole
            else:
                column = (whole[0], 1) if len(whole) == 2 else whole
                shapes[f"glora_{path}.X"] = (1,) if kind == "constant" else column
        return shapes


METHODS: dict[str, type[MethodSettings]] = {"LORA": LoraSettings, "ROAD": RoadSettings, "GLORA": GloraSettings}


def check_method(method: str, others: Sequence[str]) -> None:
    """Refuse an adapter of another method than those that are there: peft runs one method in a model."""
    if other := next((other for other in others if other != method), None):
        raise RedxError(
            f"An adapter of the kind {method} cannot stand beside one of the kind {other}, since peft runs one kind "
            "in a model; put it into a library of its own."
        )


def peft_settings(settings: dict[str, Any]) -> Any:
    """Return peft's settings of a checked adapter, for a model that runs and is not trained.

    Parameters
    ----------
    settings
        Content of adapter_config.json.
    """
    import peft

    method = METHODS[settings["peft_type"]]
    kind = getattr(peft, method.config_class)
    dropped = {"auto_mapping", "peft_type", *method.training_only}
    known = {name: settings[name] for name in kind.__dataclass_fields__ if name in settings and name not in dropped}
    return kind(**{**known, "inference_mode": True, method.start: True, "task_type": "CAUSAL_LM"})


def _divide(whole: int, parts: int, setting: str, module: str) -> int:
    if whole % parts:
        raise RedxError(
            f"The {setting} {parts} of the adapter does not divide {whole}, a size of {module[:120]!a}; "
            "it was trained on another model."
        )
    return whole // parts
