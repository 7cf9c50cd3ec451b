"""A composed model: base, experts and router, put together by a rule when it is asked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from redx.composition.abstention import abstention_cutoff, class_means, familiarity
from redx.composition.confidence import confidences
from redx.composition.owners import OwnerFile, join_owners, read_owner_file, write_owner_file
from redx.composition.parts import Parts, predicted_classes
from redx.composition.quarantine import Trial, try_experts
from redx.composition.risk import RiskControl
from redx.composition.rules import Rule, RuleId, check_rule, compose, get_rule, to_logits
from redx.config import SHARED_ONLY, BankId, ModelConfig, StatisticsConfig
from redx.data.dataset import Split
from redx.data.frames import is_frame
from redx.data.inputs import READERS
from redx.data.labelled import TEXT as TEXT_COLUMNS
from redx.data.splits import classes_are_disjoint
from redx.data.tables import required_column
from redx.errors import RedxError
from redx.io.files import check_name, natural_order
from redx.io.hardware import usable_device
from redx.model.answers import Answers, answer_features, as_frame
from redx.model.defaults import default_config, default_training
from redx.model.export import ComposedHead
from redx.model.hub import fetch_folder, first_line
from redx.models.backbones.base import Encoder
from redx.models.banks import Bank, run_bank
from redx.models.base import Base
from redx.models.classes import add_floor, check_new_classes, extend_base
from redx.models.domain_head import DomainHead, fit_domain_head, name_domains
from redx.models.encoder import FEATURES, FeatureTrunk, ModuleEncoder, build_encoder, count_rows
from redx.models.expert import Expert
from redx.models.fingerprint import fingerprint_base
from redx.models.library import CLOSED_GATE, ExpertLibrary, build_library, order_domains
from redx.models.ownership import own_class_score
from redx.models.router import KEYS, TRAINED, TrainedRouter, check_router, check_routing
from redx.report.notebook import model_html
from redx.schema import DEFAULT_RISK
from redx.training.base import fit_encoder, seed_everything
from redx.training.datasets import ExpertData
from redx.training.experts import train_experts
from redx.training.router import train_router

Inputs = Any  # what a user asks about: texts, images, features, pairs of numbers, or what the user's backbone reads
Backbone = nn.Module | Callable[[Any], Tensor] | str | None
MIN_EXAMPLES = 8  # that an expert can be trained on
UNOWNED = "no expert"  # the domain of classes that no expert has examples of

log = logging.getLogger("redx")


@dataclass(frozen=True)
class ModelInfo:
    """What a model knows of its task; the content of `model.json`."""

    domains: tuple[str, ...]  # domains of the data
    classes: tuple[str, ...]  # empty for a regression
    belongs: tuple[int, ...]  # the domain of each class; -1 where several domains have it
    unit: float = 1.0  # what one unit of a regression's answer is in the network's output
    shape: tuple[int, ...] = ()  # shape of one input
    routed: tuple[str, ...] = ()  # experts that the trained router has gates for, in its order
    reads: str = ""  # the kind of inputs, as in `redx.data.inputs`; empty for what a user's own backbone reads
    backbone: str = ""  # hash of a user's own backbone, where it is a module


@dataclass(frozen=True)
class ModelExtension:
    """A further trained module that a task puts before a model."""

    name: str  # of its file, NAME.safetensors
    load: Callable[[], Any]  # reads it


class Model(nn.Module):
    """A frozen base, experts that were trained apart, a router, and the risk that the user chose.

    Put one together with `fit_base`, `add_expert` and `calibrate`, or read one with `redx.load` and
    `Model.from_pretrained`. Calling it gives logits; `predict` gives labels; `explain` gives weights and certificates.

    Parameters
    ----------
    backbone
        What turns a batch into features, (N, D): any `nn.Module` or function, the name or folder of a language model,
        or None where inputs are features already. It is frozen.
    classes
        The labels that the base knows, in the order of the logits; without them those of `fit_base`. Labels are texts:
        a number stands for its digits.
    config
        Settings of the model; by default settings that suit a few hundred to some thousand examples.
    seed
        Decides initial weights and batches.

    Attributes
    ----------
    info, config
        What the model knows of its classes and domains, and its settings.
    read
        Turns a user's inputs into what the encoder reads.
    base, experts, router
        The frozen base, the library of experts, and the trained router; None where there is only `keys`.
    fixed
        Banks that are not made of the library's experts: pooled, averaged and jointly trained ones.
    joint_routers
        Routers that were trained together with a bank.
    rule
        The rule that answers, such as `red` or `red/anchored`.
    routing
        Which router gives the gates: `router` (the trained one) or `keys`.
    extension
        What the task of a run puts before the model, such as the decomposer of `steps`; None for most tasks.
    figures
        The summary of the run, for the model card.
    home
        The folder that the model was read from.
    control
        The risk that the model keeps and the cut-offs that follow from it; None where no bank has risk control,
        or before `calibrate`.
    compared
        The same for banks that are compared at this risk: experts that correct the base of the shared examples alone.
    calibration_set
        Returns the held-out examples that it is calibrated on, as features; None where the model has none.
    anchor_data
        Returns the shared examples that the base was trained on, as features; None where the model has none.
    choices
        Returns the examples that are for choices, as features, on which every expert is tried; None where the model
        has none, and then no expert is put in quarantine.
    shared_only
        Experts of the same domains that were trained on the shared examples alone: the control that shows what the
        owners' own examples bring, as the bank `residual/shared-only`. None where the model has none.

    Notes
    -----
    `state_dict` holds the base, the trained router and the backbone where it is a module. Experts are read from disk
    when they are first asked and are no part of it; `save_pretrained` writes everything.

    Examples
    --------
    >>> import torch
    >>> x = torch.randn(300, 8)
    >>> y = x[:, :4].argmax(1)
    >>> model = Model().fit_base(x[:100], y[:100])
    >>> for name, labels in {"first": (0, 1), "second": (2, 3)}.items():
    ...     own = torch.isin(y[:200], torch.tensor(labels))
    ...     _ = model.add_expert(name, x[:200][own], y[:200][own])
    >>> _ = model.calibrate(x[200:], y[200:], risk=0.05)
    >>> model(x[:5]).shape
    torch.Size([5, 4])
    """

    base: Base
    router: TrainedRouter | None
    experts: ExpertLibrary

    def __init__(
        self,
        backbone: Backbone = None,
        classes: Sequence[str] = (),
        *,
        config: ModelConfig | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        names = [str(label) for label in _plain(classes)]
        if twice := [label for label in names if names.count(label) > 1]:
            raise RedxError(f"The class {twice[0]!r:.100} is given twice; give every class once.")
        self._chosen = config  # None: settings follow from the numbers of examples
        name = backbone if isinstance(backbone, str) else FEATURES
        self.config = config or default_config(backbone=name)
        self.set_backbone(backbone)
        self.seed = seed
        reads = "" if is_own(backbone) else "text" if isinstance(backbone, str) else "features"
        self.info = ModelInfo((), tuple(names), (-1,) * len(names), reads=reads)
        self.read: Callable[[Any], Any] = READERS[reads] if reads else as_given
        self._set_up()

    def _set_up(self) -> None:
        self.router = None
        self.fixed: dict[BankId, Bank] = {}
        self.joint_routers: dict[BankId, TrainedRouter] = {}
        self.rule, self.routing = "red", KEYS
        self.extension: ModelExtension | None = None
        self.figures: dict[str, Any] = {}
        self.home: Path | None = None
        self.control: RiskControl | None = None
        self.calibration_set: Callable[[], Split] | None = None
        self.anchor_data: Callable[[], Split] | None = None
        self.choices: Callable[[], Split] | None = None
        self.shared_only: ExpertLibrary | None = None
        self._head: tuple[Callable[[], Split], DomainHead | None] | None = None  # of these shared examples
        self._control_model: Model | None = None  # of the experts in `shared_only`
        self._admitted: frozenset[str] = frozenset()
        self.compared: dict[BankId, RiskControl] = {}
        self._fell_back = False  # whether `keys` routes because the trained router lacks a gate
        self._known_examples: Any = None  # of abstention: where they come from, class means, scores of held-out ones
        self.eval()

    @classmethod
    def assemble(
        cls,
        info: ModelInfo,
        config: ModelConfig,
        read: Callable[[Any], Tensor],
        base: Base,
        experts: ExpertLibrary,
        router: TrainedRouter | None = None,
        *,
        fixed: dict[BankId, Bank] | None = None,
        joint_routers: dict[BankId, TrainedRouter] | None = None,
        rule: str = "red",
        extension: ModelExtension | None = None,
        figures: dict[str, Any] | None = None,
        home: Path | None = None,
        control: RiskControl | None = None,
        compared: dict[BankId, RiskControl] | None = None,
        calibration_set: Callable[[], Split] | None = None,
        anchor_data: Callable[[], Split] | None = None,
        choices: Callable[[], Split] | None = None,
        shared_only: ExpertLibrary | None = None,
    ) -> Model:
        """Return a model of modules that exist already; the arguments are the attributes of the same names."""
        model = cls.__new__(cls)
        nn.Module.__init__(model)
        model.info, model.config, model._chosen, model.read = info, config, config, read
        model.set_backbone(None)
        model.seed = 0
        model._set_up()
        model.base, model.experts, model.router = base, experts, router
        model.fixed, model.joint_routers = fixed or {}, joint_routers or {}
        model.extension, model.figures, model.home = extension, figures or {}, home
        model.control, model.calibration_set, model.anchor_data = control, calibration_set, anchor_data
        model.compared, model.choices, model.shared_only = compared or {}, choices, shared_only
        model.routing = KEYS if router is None else TRAINED
        form = get_rule(RuleId.parse(rule).rule).form
        model.rule = rule if form in {bank_id.form for bank_id in model.banks} else "moe"
        return model.eval()

    def with_experts(self, experts: ExpertLibrary, fixed: dict[BankId, Bank] | None = None) -> Model:
        """Return a model of the same modules with another library of experts; nothing is copied."""
        return type(self).assemble(
            self.info,
            self.config,
            self.read,
            self.base,
            experts,
            self.router,
            fixed=self.fixed if fixed is None else fixed,
            joint_routers=self.joint_routers,
            rule=self.rule,
            control=self.control,
            compared=self.compared,
            calibration_set=self.calibration_set,
            anchor_data=self.anchor_data,
            choices=self.choices,
        )

    # --- putting a model together

    def fit_base(self, x: Inputs, y: Sequence[Any] | Tensor, domains: Sequence[Any] | None = None) -> Model:
        """Train the base on the shared examples, freeze it, and return the model.

        Parameters
        ----------
        x, y
            Inputs and labels that everybody who trains an expert may see.
        domains
            The domain of each example. Without it, labels separate domains: an expert's domain is the labels it was
            trained on. Give it where domains share labels.
        """
        names = [str(label) for label in _plain(y)]
        _check_count(x, names, "label")
        classes = self.info.classes or tuple(sorted(set(names), key=natural_order))
        labels = _indices(names, classes)
        if len(set(names)) < 2:
            raise RedxError("A base separates classes; give shared examples of at least two classes.")
        owners = [str(domain) for domain in _plain(domains)] if domains is not None else []
        if domains is not None:
            _check_count(x, owners, "domain")
        features = self._features(x)
        known = tuple(sorted(set(owners), key=natural_order))
        index = torch.tensor([known.index(owner) for owner in owners]) if owners else torch.full_like(labels, -1)
        own_labels = not owners or classes_are_disjoint(index.numpy(), labels.numpy())
        if self._chosen is None:
            sums = StatisticsConfig(use=len(labels) >= len(classes))  # fewer examples say little of the sums' scale
            self.config = default_config(self.config.backbone, len(labels), own_labels=own_labels, statistics=sums)
        split = Split(features, labels, index)
        with torch.random.fork_rng(devices=[]):  # torch's global generator is as before afterwards
            seed_everything(self.seed)
            settings = self.config.base
            base = fit_encoder(self._build_encoder(), settings, split, len(classes), self.seed, self.config.device)
        belongs = [-1] * len(classes)
        for label, owner in zip(labels.tolist(), index.tolist(), strict=True):
            belongs[label] = owner if own_labels else -1
        self._set_up()
        self.base = base
        shape, mark = tuple(features.shape[1:]), "" if self.backbone is None else base.encoder.mark
        self.info = ModelInfo(known, classes, tuple(belongs), shape=shape, reads=self.info.reads, backbone=mark)
        self.anchor_data = partial(as_given, self._embedded(split))
        self.experts = build_library({}, base, self.config, self._fingerprint, classes)
        self.use_examples(shared=self.anchor_data)
        return self.eval()

    def use_examples(
        self, shared: Callable[[], Split] | None = None, choices: Callable[[], Split] | None = None
    ) -> None:
        """Set where the shared examples, and those for choices, come from.

        The base may be solved anew with both, and every expert is tried on those for choices.

        Parameters
        ----------
        shared, choices
            Each returns examples as features; None where the model has none.
        """
        self.anchor_data, self.choices = shared or self.anchor_data, choices or self.choices
        if self.experts.pool is not None:
            self.experts.pool.shared = shared or self.experts.pool.shared
            self.experts.pool.choices = choices or self.experts.pool.choices

    def add_expert(
        self,
        expert: str | Path | Expert,
        x: Inputs | None = None,
        y: Sequence[Any] | Tensor | None = None,
        *,
        new_classes: bool = False,
        unverified: bool = False,
        statistics: bool = True,
    ) -> str:
        """Add an expert: train one on its own examples, or take one that was trained elsewhere; return its name.

        Parameters
        ----------
        expert
            The name of the new expert's domain, with its examples; without examples the folder of an expert, the name
            of one on the Hugging Face Hub, or an `Expert`.
        x, y
            Its own examples; nobody else needs them.
        new_classes
            Accept labels that the base does not know: the expert brings them as classes of its own.
        unverified
            Accept an expert that carries no fingerprint of its base.
        statistics
            Whether its statistics become part of the base. They reveal second moments of its features; without them the
            base does not learn from its examples.
        """
        self._check_fitted()
        if x is None and y is None:
            if not isinstance(expert, Expert):
                folder = fetch_folder(expert, "expert.json")
                expert = Expert.load(folder, linked=folder != Path(expert))
        elif x is None or y is None or not isinstance(expert, str):
            raise RedxError(
                "Give the name of the expert's domain, its inputs and its labels; or the folder of an expert."
            )
        elif check_name(expert) in self.experts:
            raise RedxError(f"There is an expert {expert!r} already; remove it first.")
        else:
            expert = self._train_expert(expert, x, _plain(y), new_classes, statistics)
        if not statistics:
            expert = expert.without_statistics()
        name = self.experts.add(expert, unverified)
        self._route_anew()
        return name

    def _train_expert(self, name: str, x: Inputs, y: list[Any], new_classes: bool, statistics: bool) -> Expert:
        names = [str(label) for label in y]
        _check_count(x, names, "label")
        if len(names) < MIN_EXAMPLES:
            raise RedxError(f"Domain {name!r} has {len(names)} examples; an expert needs at least {MIN_EXAMPLES}.")
        if self.anchor_data is None:
            raise RedxError("This model holds no shared examples to train an expert with; call fit_base first.")
        classes = self.info.classes
        unknown = sorted(set(names) - set(classes), key=natural_order)
        if unknown and not new_classes:
            raise RedxError(
                f"The base does not know the class {unknown[0]!r:.100}; give new_classes=True if the expert brings it, "
                "or correct the label."
            )
        check_new_classes(name, unknown, classes, ())
        labels = _indices(names, (*classes, *unknown))
        by_class = self.config.ownership.kind == "classes"
        if by_class and len(labels.unique()) == len(classes) + len(unknown):
            raise RedxError(
                f"Domain {name!r} has all classes, so its labels do not separate it from others; give fit_base the "
                "domains of the shared examples."
            )
        features = self._features(x)
        index = self.info.domains.index(name) if name in self.info.domains else -1
        own = self._embedded(Split(features, labels, torch.full_like(labels, index)))
        anchors = self.anchor_data()
        outside = ~torch.isin(anchors.labels, labels) if by_class and index < 0 else anchors.domains != index
        if not by_class and index < 0 and not self.info.domains:
            raise RedxError("Experts that share labels need the domains of the shared examples; give them to fit_base.")
        empty = own.only(torch.arange(0))
        data = ExpertData(name, own, anchors.only(outside.nonzero()[:, 0]), empty)
        config = (
            self.config
            if self._chosen
            else default_config(self.config.backbone, len(anchors), len(labels), by_class, self.config.statistics)
        )
        base, every = extend_base(self.base, len(unknown)), (*classes, *unknown)
        fingerprint = self.experts.fingerprint
        shared = anchors if statistics else None
        (trained,) = train_experts(config, [data], base, self.seed, self.info.unit, every, fingerprint, shared=shared)
        return trained

    def remove_expert(self, name: str) -> Expert:
        """Remove an expert and return it, so that it can be added again; the others stay as they are, bit for bit."""
        self._check_fitted()
        removed = self.experts.remove(name)
        self._route_anew()
        return removed

    def _route_anew(self) -> None:
        """Let `keys` route while the trained router lacks a gate for one of the experts, and say so."""
        lacking = self.router.missing(self.experts.names) if self.router is not None else []
        if lacking and self.routing == TRAINED:
            self.routing, self._fell_back = KEYS, True
            log.warning("the trained router has no gate for %r, so keys routes until fit_router is called", lacking[0])
        elif self._fell_back and not lacking:
            self.routing, self._fell_back = TRAINED, False

    def fit_router(self, x: Inputs | None = None, domains: Sequence[Any] | None = None, router: str = KEYS) -> Model:
        """Choose the router, and train it where there is something to train; return the model.

        Parameters
        ----------
        x, domains
            Inputs with the name of each one's expert; `keys` needs none.
        router
            `keys`, the experts' own ownership scores; or one of `redx.ROUTERS`, such as `mlp` or `linear`.
        """
        self._check_fitted()
        self._check_experts()
        self._fell_back = False
        if router == KEYS:
            self.router, self.routing = None, KEYS
            self.config = self.config.model_copy(
                update={"router": self.config.router.model_copy(update={"shape": KEYS})}
            )
            return self
        config = self.config.router.model_copy(update={"shape": router})
        check_router(config)
        if x is None or domains is None:
            raise RedxError(f"The router {router!r} is trained; give inputs and the name of each one's expert.")
        names, owners = self.experts.names, [str(domain) for domain in _plain(domains)]
        _check_count(x, owners, "domain")
        if unknown := sorted(set(owners) - set(names)):
            raise RedxError(f"There is no expert {unknown[0]!r}; choose from {', '.join(names)}.")
        split = self._embedded(
            Split(self._features(x), torch.zeros(len(owners), dtype=torch.long), _indices(owners, names))
        )
        training = self.config.router.training if self._chosen else default_training(len(owners))
        config = config.model_copy(update={"training": training})
        network = train_router(config, names, split, split, self.seed, self.config.device)
        self.config = self.config.model_copy(update={"router": config})
        self.router, self.routing = TrainedRouter(network, names), TRAINED
        self.info = replace(self.info, routed=names)
        return self

    def set_backbone(self, backbone: Backbone) -> None:
        """Keep the user's own backbone; a module moves along with the model."""
        self.backbone = backbone if isinstance(backbone, nn.Module) else None
        self._function = None if isinstance(backbone, str | nn.Module) else backbone

    def follow_defaults(self) -> None:
        """Let settings follow from the numbers of examples, where those of the model are the ones that did."""
        by_class, shared = self.config.ownership.kind == "classes", len(self.anchor_data()) if self.anchor_data else 0
        default = default_config(self.config.backbone, shared, own_labels=by_class, statistics=self.config.statistics)
        if self.config.model_copy(update={"router": default.router}) == default:
            self._chosen = None

    def _build_encoder(self) -> Encoder:
        """Return the untrained encoder: the user's own backbone with a trunk, or the one that the settings name."""
        own = self.backbone if self.backbone is not None else self._function
        return build_encoder(self.config) if own is None else ModuleEncoder(own, FeatureTrunk(self.config.base.trunk))

    def _features(self, x: Inputs) -> Tensor:
        """Return what the frozen backbone gives for inputs; it runs once for each of them."""
        if hasattr(self, "base"):
            encoder = self.base.encoder
        else:
            with torch.random.fork_rng(devices=[]):
                encoder = self._build_encoder()
        inputs = self.read(x)
        encoder.prepare([inputs])
        return encoder.read(inputs)

    def _embedded(self, split: Split) -> Split:
        """Return examples whose inputs went through the backbone as the features that experts read."""
        with torch.no_grad():
            h = (self.base.encoder(split.inputs) - self.base.mean) / self.base.scale
        return Split(h, split.labels, split.domains)

    def _fingerprint(self) -> dict[str, Any]:
        return fingerprint_base(self.base, self.config, self.info.classes, self.info.shape)

    def _check_fitted(self) -> None:
        if not hasattr(self, "base"):
            raise RedxError("This model has no base yet; train one with model.fit_base(inputs, labels).")

    def _check_experts(self) -> None:
        if not len(self.experts):
            raise RedxError("This model has no experts yet; add some with model.add_expert(name, inputs, labels).")

    @property
    def uses_keys(self) -> bool:
        """Whether the experts' own ownership scores are the gates."""
        return self.routing == KEYS or self.router is None

    def place(self, device: str) -> None:
        """Let experts, heads and routers compute on a device; the base stays where it is.

        Parameters
        ----------
        device
            `cpu` or `cuda`; where there is no CUDA device everything stays on the CPU.
        """
        if (device := usable_device(device)) == "cpu":
            return
        for library in (self.experts, self.shared_only):
            if library is not None:
                library.apply(lambda tensor: tensor.to(device))
        for module in (*self.fixed.values(), *self.joint_routers.values(), self.router):
            if module is not None:
                module.to(device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Model:
        """Move or convert experts, heads and routers together with the registered modules."""
        super()._apply(fn, recurse)
        for module in (*self.fixed.values(), *self.joint_routers.values()):
            module._apply(fn)
        for library in (getattr(self, "experts", None), getattr(self, "shared_only", None)):
            if library is not None:
                library.apply(fn)
        return self

    # --- what it consists of

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels, in the order of the logits: the base's, then those that experts bring; empty for a regression."""
        return self.info.classes + (self.experts.new_classes if hasattr(self, "experts") else ())

    @property
    def domain_names(self) -> tuple[str, ...]:
        """The domains as `Parts.domains` counts them: the experts, then domains of the data without an expert."""
        return order_domains(self.experts.names, self.info.domains)

    def expert_index(self, domains: Tensor) -> Tensor:
        """Return domains that count as in the data, (N,), as indices into `domain_names`."""
        names = self.domain_names
        return torch.tensor([names.index(name) for name in self.info.domains], dtype=torch.long)[domains]

    @property
    def is_complete(self) -> bool:
        """Whether the experts are those of the run, one per domain of the data, with the classes of the base."""
        return set(self.experts.names) == set(self.info.domains) and not self.experts.new_classes

    @property
    def banks(self) -> list[BankId]:
        """The banks that can be asked.

        Joint and averaged ones only while the experts are those of the run, and banks that are compared only where
        their risk can be controlled, with calibration examples: the bank that corrects the base of the shared examples
        beside statistics, and `residual/shared-only`.
        """
        fixed = [bank_id for bank_id in self.fixed if self.is_complete or bank_id.form == "pooled"]
        compared = self.experts.pool is not None and (self.calibration_set is not None or bool(self.compared))
        if self.shared_only is not None and self.is_complete and self.calibration_set is not None:
            fixed.append(SHARED_ONLY)
        return [*(one for one, bank in self.experts.banks.items() if compared or not bank.on_shared), *fixed]

    def bank(self, bank_id: BankId) -> Bank:
        """Return a bank as one stack."""
        return self.fixed[bank_id] if bank_id in self.fixed else self.experts.stacked_bank(bank_id)

    # --- parts

    def parts(self, inputs: Inputs) -> Parts:
        """Return the `Parts` of inputs for the model's rule; labels and domains are not known."""
        return self._parts_of_features(self.embed(inputs))

    def forward(self, inputs: Inputs) -> Tensor:
        """Return the composed logits, (N, C)."""
        rule, bank_id = self.rule_and_bank()
        return to_logits(rule, _compose(rule, self.parts_of(self.embed(inputs), bank_id)))

    def head(self) -> ComposedHead:
        """Return what follows the backbone as one plain module, features (N, E) to logits, for `torch.export`."""
        return ComposedHead(self)

    def embed(self, inputs: Inputs) -> Tensor:
        """Return the standardised features of inputs, (N, E): what base, experts and router read."""
        self._check_fitted()
        read = self.read(self._columns(inputs) if is_frame(inputs) else inputs)
        return self.base.embed(read)

    def _columns(self, frame: Any) -> Any:
        """Return what the model reads of a DataFrame: its column of texts, or all columns as numbers."""
        if self.info.reads not in ("text", "sentences"):
            return frame.to_numpy(copy=True)
        table = getattr(self.config, "table", None)
        wanted = [table.text] if table else list(TEXT_COLUMNS)
        names = [name for name in wanted if name in frame.columns] or list(frame.columns)[: len(frame.columns) == 1]
        if not names:
            required_column(Path("The DataFrame"), map(str, frame.columns), wanted[0])
        return frame[names[0]].tolist()

    def _parts_of_features(self, h: Tensor) -> Parts:
        return self.parts_of(h, self.rule_and_bank()[1])

    def parts_of(
        self, h: Tensor, bank_id: BankId, labels: Tensor | None = None, domains: Tensor | None = None
    ) -> Parts:
        """Return the `Parts` of features for one bank.

        Parameters
        ----------
        h
            Features of shape (N, E), as `base.embed` returns them.
        bank_id
            The bank to run.
        labels, domains
            Tensors of shape (N,); domains count as in `domain_names`, and -1 is unknown; None where nobody knows them.

        Returns
        -------
        Parts
            Base logits, residuals and gates of these examples.
        """
        if bank_id == SHARED_ONLY:
            main = self.config.controlled_bank or self.config.main_bank("residual")
            return self._shared_only_model().parts_of(h, main, labels, domains)
        fixed, new = self.fixed.get(bank_id), len(self.experts.new_classes)
        if fixed:
            base = self.experts.base_logits(bank_id, h)
            outputs = self.experts.to_residuals(bank_id, add_floor(run_bank(fixed, h), new), h, base)
        else:
            base, outputs = self.experts.run(bank_id, h)
        gates, ownership = self._gates_and_ownership(h, bank_id)
        gates = self._without_quarantined(gates, bank_id)[:, : outputs.shape[1]]
        parts = Parts(self._in_units(base), self._in_units(outputs), gates, labels, domains)
        parts = self._with_gain(parts, bank_id, self.experts)
        if not self._has_control(bank_id) or not len(self.experts):
            return parts
        ownership = self.experts.ownership_scores(h) if ownership is None else ownership
        return self._with_confidences(h, parts, bank_id, self.experts, ownership)

    def _in_units(self, outputs: Tensor) -> Tensor:
        """Return outputs of networks in the units of the answers."""
        return outputs if self.info.unit == 1 else outputs / self.info.unit

    def gates(self, h: Tensor, bank_id: BankId | None = None) -> Tensor:
        """Return one gate per expert, (N, E) to (N, K), from the router that is in use."""
        return self._gates_and_ownership(h, bank_id)[0]

    def _gates_and_ownership(self, h: Tensor, bank_id: BankId | None) -> tuple[Tensor, Tensor | None]:
        """Return the gates, and the ownership scores, (N, K) each, where the gates are made of them."""
        if self.uses_keys or self.router is None:
            ownership = self.experts.ownership_scores(h)
            return ownership, ownership
        router = self.joint_routers.get(bank_id, self.router) if bank_id else self.router
        gates = router.gates(h, self.experts)
        if router is not self.router or not self.config.router.add_ownership:
            return gates, None
        ownership = self.experts.ownership_scores(h)
        return gates + ownership, ownership

    def route_by_keys_if_needed(self) -> None:
        """Route by `keys` where the trained router lacks a gate for one of the experts."""
        if self.router is not None and self.router.missing(self.experts.names):
            self.routing = KEYS

    @property
    def routing_note(self) -> str | None:
        """Why `keys` routes although the model has a trained router; None where that is not so."""
        missing = self.router.missing(self.experts.names) if self.router is not None else []
        if not missing or self.routing != KEYS:
            return None
        return f"the trained router has no gate for {missing[0]!r}, so keys routes until `redx router train RUN`"

    # --- answers

    def predict(self, inputs: Inputs, top: int | None = None, abstain: float | None = None) -> Any:
        """Return the answer to each input: a label, or the number of a regression; for a DataFrame, another one.

        Parameters
        ----------
        inputs
            What the task reads: texts, images, features or pairs of numbers; or a DataFrame with a column of texts, or
            with features as columns.
        top
            Run only this many experts per example, those with the largest gates; others are not even read from disk.
            The score `contest` then compares the ownership scores of the experts that some example needs, unless the
            gates read all of them, so that the risk that was calibrated for all experts is kept only approximately.
        abstain
            Answer None where an input looks like none of the known classes. This is the largest share of inputs of
            known classes on which that may happen, such as 0.05.

        Returns
        -------
        list or DataFrame
            One answer per input; None where the model abstains. For a DataFrame one with the same index and the columns
            `answer`; `domain`, that of the answer, or where several have it, the expert with the largest weight;
            `radius`, the share of routing weight that an adversary may move; `abstained`.
        """
        if is_frame(inputs):
            if top is not None:
                raise RedxError("Radii need all experts; leave out top, or give a list instead of a DataFrame.")
            return as_frame(self.explain(inputs, abstain), inputs)
        (rule, bank_id), h = self.rule_and_bank(), self.embed(inputs)
        some = top if rule.routed else None
        parts = self.parts_of(h, bank_id) if some is None else self._sparse_parts(h, bank_id, some)
        predicted = predicted_classes(_compose(rule, parts))
        classes, answers = self.classes, predicted.tolist()
        answers = [classes[index] for index in answers] if classes else answers
        if abstain is None:
            return answers
        unfamiliar = self.features_unfamiliar(h, abstain).tolist()
        return [None if unknown else answer for answer, unknown in zip(answers, unfamiliar, strict=True)]

    def _sparse_parts(self, h: Tensor, bank_id: BankId, top: int) -> Parts:
        """Return the record of the experts with the largest gates alone, so many of each example."""
        if not 1 <= top <= len(self.experts):
            raise RedxError(f"There are {len(self.experts)} experts; ask the first 1 to {len(self.experts)} of them.")
        gates, ownership = self._gates_and_ownership(h, bank_id)
        gates = self._without_quarantined(gates, bank_id)
        first = gates.topk(top, -1, sorted=False).indices.sort(-1).values  # (N, top), in the order of the experts
        used, places = first.unique(return_inverse=True)  # columns that any example needs, and each one's among them
        library = self.experts.at(used.tolist())
        base, outputs = library.run(bank_id, h, places)
        parts = Parts(self._in_units(base), self._in_units(outputs), gates.gather(1, first))
        parts = self._with_gain(parts, bank_id, library, places)
        if self._has_control(bank_id):
            known = (
                (library, library.ownership_scores(h), places)
                if ownership is None
                else (self.experts, ownership, first)
            )
            parts = self._with_confidences(h, parts, bank_id, *known)
        return parts

    def explain(self, inputs: Inputs, abstain: float | None = None) -> Answers:
        """Return for each input the answer, the weights and contributions of the experts, and the exact radius.

        Parameters
        ----------
        inputs
            What the task reads.
        abstain
            Abstain where an input looks like none of the known classes, as in `predict`.
        """
        h = self.embed(inputs)
        unfamiliar = None if abstain is None else self.features_unfamiliar(h, abstain).tolist()
        return Answers(answer_features(self, h).explain(self, unfamiliar))

    def _repr_html_(self) -> str:
        """Return what the model is as a table, for notebooks."""
        rows = {"rule": self.rule, "router": self.routing, "classes": str(len(self.classes))}
        names: list[str] = []
        if "experts" in self.__dict__:
            names = list(self.experts.names)
            risk = None if self.control is None else self.control.risk
            rows |= {"risk": "not calibrated" if risk is None else f"{risk:g}"}
        return model_html(rows, names, self.home and str(self.home))

    @contextmanager
    def using(
        self,
        rule: str | None = None,
        without: Sequence[str] = (),
        adding: Sequence[str | Path] = (),
        router: str | None = None,
    ) -> Iterator[Model]:
        """Use another rule, other experts or another router inside a `with` block.

        Parameters
        ----------
        rule
            A rule, or `rule/bank`.
        without
            Names of experts to leave out.
        adding
            Folders of experts to add.
        router
            `router` (the trained one) or `keys`.
        """
        before = self.rule, self.routing
        self.rule, self.routing = rule or self.rule, check_routing(router) if router else self.routing
        try:
            with self.experts.changing() as library:
                for name in without:
                    library.remove(name)
                for folder in adding:
                    library.add(folder)
                self.rule_and_bank()
                yield self
        finally:
            self.rule, self.routing = before

    def rule_and_bank(self) -> tuple[Rule, BankId]:
        """Return the model's rule and the bank that it reads."""
        self._check_fitted()
        name, bank = RuleId.parse(self.rule)
        rule = get_rule(name)
        check_rule(self.rule, self.experts.pool is not None)
        bank_id = BankId(rule.form, bank) if bank else self.config.main_bank(rule.form)
        if rule.adversary is None and not bank and bank_id in self.config.banks:
            bank_id = self.config.trained_as(bank_id)  # no router can do harm, so no cut-off is needed
        if bank_id not in self.banks:
            have = ", ".join(f"{form} bank {name}" for form, name in self.banks)
            raise RedxError(f"Rule {self.rule!r} needs a {rule.form} bank; this model has {have}.")
        return rule, bank_id

    # --- files

    def save_pretrained(self, folder: str | Path, *, calibration: bool = True, shared: bool = True) -> None:
        """Write the model as it is now to an empty folder, with a model card.

        Parameters
        ----------
        folder
            The folder, which `Model.from_pretrained` and `redx.load` read.
        calibration
            Whether the features of the calibration and the choice examples are written too, so that experts can be
            changed later without giving new ones. Leave them out of what others get: an expert that was made with them
            in hand voids the promise.
        shared
            Whether the features of the shared examples are written too, which further experts are trained with.
        """
        from redx.model.persistence import save_model

        self._check_fitted()
        save_model(self, Path(folder), calibration, shared)

    @classmethod
    def from_pretrained(cls, name: str | Path, backbone: Backbone = None, revision: str | None = None) -> Model:
        """Return a model that `save_pretrained` or `push_to_hub` wrote.

        Parameters
        ----------
        name
            Its folder, or its name on the Hugging Face Hub.
        backbone
            The user's own backbone, where it was made with one; it is not saved with the model.
        revision
            The revision on the hub.
        """
        from redx.model.persistence import load_saved

        return load_saved(cls, fetch_folder(name, "model.json", revision), backbone)

    def push_to_hub(
        self,
        name: str,
        *,
        private: bool | None = None,
        token: str | None = None,
        calibration: bool = False,
        shared: bool = False,
    ) -> str:
        """Upload the model to the Hugging Face Hub, and return its address.

        Parameters
        ----------
        name
            OWNER/NAME of the repository, which is made where there is none.
        private
            Whether a new repository is private; by default as the owner's account says.
        token
            The access token; by default the one that `hf auth login` stored.
        calibration, shared
            Whether features of the calibration and of the shared examples go along, as in `save_pretrained`.
        """
        from huggingface_hub import HfApi

        with TemporaryDirectory() as scratch:
            folder = Path(scratch) / "model"
            self.save_pretrained(folder, calibration=calibration, shared=shared)
            try:
                api = HfApi(token=token)
                api.create_repo(name, private=private, exist_ok=True)
                return str(api.upload_folder(repo_id=name, folder_path=folder, commit_message="A model of redx"))
            except Exception as error:
                raise RedxError(
                    f"The model could not be uploaded as {name} ({first_line(error)}); check the name and your token."
                ) from error

    # --- risk

    def _has_control(self, bank_id: BankId) -> bool:
        return bank_id in self.config.banks and self.config.banks[bank_id].controlled

    def _with_confidences(
        self,
        h: Tensor,
        parts: Parts,
        bank_id: BankId,
        library: ExpertLibrary,
        ownership: Tensor,
        columns: Tensor | None = None,
    ) -> Parts:
        """Return the record of features, (N, E), with confidences and cut-offs, given these ownership scores, (N, K).

        Where the record holds some experts of each example alone, `columns`, (N, T), says which of the library.
        """
        calibration = self.control_of(bank_id)
        if calibration.answers and columns is None:
            ownership = _full_ownership(library, parts, ownership)
        elif calibration.answers and columns is not None:
            ownership = ownership.scatter(
                1, columns, _full_ownership(library, parts, ownership.gather(1, columns), columns)
            )
        own, quarantined = self._silence(calibration.quarantined, library)
        sure = confidences(calibration.score, parts.base, parts.residuals, ownership, columns, own, quarantined)
        if calibration.head is not None:
            parts = replace(parts, named=name_domains(calibration.head.to(h.device), h))
        return parts.with_confidences(sure, calibration.cutoffs_for(parts.base, parts.named))

    def _silence(
        self, quarantined: Tensor | None, library: ExpertLibrary | None = None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return what silences experts, all of them or those of a part of the library: own classes and quarantine."""
        device, asked = self.base.weight.device, self.experts if library is None else library
        own = asked.own_classes()
        if quarantined is not None and asked is not self.experts:
            quarantined = quarantined[torch.tensor([self.experts.names.index(name) for name in asked.names])]
        return None if own is None else own.to(device), None if quarantined is None else quarantined.to(device)

    def _without_quarantined(self, gates: Tensor, bank_id: BankId) -> Tensor:
        """Return gates that give the experts in quarantine no weight, (N, K), where the risk is controlled."""
        if not self._has_control(bank_id) or not len(self.experts):
            return gates
        out = self.control_of(bank_id).quarantined
        return gates if out is None else gates.masked_fill(out.to(gates.device), CLOSED_GATE)

    def _with_gain(self, parts: Parts, bank_id: BankId, library: ExpertLibrary, columns: Tensor | None = None) -> Parts:
        """Return the record with gates of `keys` that also count what the answers of these experts say.

        Only where experts bring classes: the others were never trained on those, and their ownership scores may be high
        on them. So a gate is the ownership score, the log-odds of the expert's own classes in its answer, and what it
        gains over the base.
        `columns` are as in `_with_confidences`.
        """
        by_keys = self.uses_keys
        if not self.experts.new_classes or not by_keys or not bank_id.corrects_base or bank_id in self.fixed:
            return parts
        ownership = _full_ownership(library, parts, parts.gates, columns)
        return replace(parts, gates=confidences("all", parts.base, parts.residuals, ownership))

    def current_control(self) -> RiskControl:
        """Return the risk control of the experts that the model has now.

        It is computed anew on the model's calibration examples whenever an expert has been added, removed or replaced.

        Raises
        ------
        RedxError
            Where the experts have changed and the model has no calibration examples.
        """
        experts, before = list(self.experts), self.control
        if before is not None and list(before.experts) == experts:
            return before
        if self.calibration_set is None:
            raise RedxError(
                "This model has no calibration for its experts and holds no examples for one; give some with "
                "model.calibrate(inputs, labels, risk=…), or leave out the cut-off with the rule 'red/anchored'."
            )
        if before is not None and before.owners:
            log.warning(
                "the experts have changed, so the thresholds of the owners of %s hold no longer: the model is "
                "calibrated on its own calibration examples until they send new ones",
                ", ".join(before.owners),
            )
        risk, confidence = (before.risk, before.confidence) if before else (self.config.risk, self.config.confidence)
        self.control = self._compute_control(self.calibration_set(), risk, confidence)
        return self.control

    def control_of(self, bank_id: BankId) -> RiskControl:
        """Return the risk control of a bank; the bank on the shared examples' base has one of its own, at equal risk.

        Parameters
        ----------
        bank_id
            A bank under risk control.

        Raises
        ------
        RedxError
            Where the bank is not the model's own and there are no calibration examples.
        """
        main = self.current_control()
        if bank_id not in self.config.banks or not self.config.banks[bank_id].on_shared:
            return main
        known = self.compared.get(bank_id)
        if known is None or list(known.experts) != list(self.experts):
            if self.calibration_set is None:
                raise RedxError(
                    f"This model holds no calibration examples for the bank {bank_id}; load it from its run folder."
                )
            known = self._compute_control(self.calibration_set(), main.risk, main.confidence, bank_id)
        if known.promise != main.promise:
            known = known.at(*main.promise)
        self.compared[bank_id] = known
        return known

    def compared_controls(self) -> dict[BankId, RiskControl]:
        """Return the controls of the banks that are compared at the model's risk."""
        banks, settings = self.banks, self.config.banks
        compared = [one for one in banks if self._has_control(one) and settings[one].on_shared]
        control = {SHARED_ONLY: self._shared_only_model().current_control()} if SHARED_ONLY in banks else {}
        return {bank_id: self.control_of(bank_id) for bank_id in compared} | control

    def _shared_only_model(self) -> Model:
        """Return the model whose experts were trained on the shared examples alone, at the risk of this one.

        Its base is solved from the shared examples too, where owners' statistics make that of this model. The router
        is the same, so that nothing but base and experts differs.
        """
        assert self.shared_only is not None
        if self._control_model is None:
            self._control_model = self.with_experts(self.shared_only, {})
            self._control_model.use_examples(self.anchor_data, self.choices)
            if self.control is not None and self.control.owners:  # who measured other experts than these
                self._control_model.control = None
        model = self._control_model
        model.routing = self.routing
        if self.config.controlled_bank is not None:
            main, known = self.current_control(), model.current_control()
            model.control = known if known.promise == main.promise else known.at(*main.promise)
        return model

    def calibrate(
        self,
        inputs: Inputs | None = None,
        labels: Sequence[Any] | None = None,
        *,
        risk: float | None = None,
        confidence: float | None = None,
        by: str | None = None,
        small: str | None = None,
        budget: str | None = None,
        choices: tuple[Inputs, Sequence[Any]] | None = None,
        admit: Sequence[str] = (),
    ) -> RiskControl:
        """Set the risk that the model keeps, on its own calibration examples or on these.

        Parameters
        ----------
        inputs, labels
            Examples that nothing was trained or chosen on; by default the calibration examples of the run.
        risk
            Bound on the harm of the worst router, from 0 to 1; by default 0.01, or the smallest that the examples
            support.
        confidence
            None: the bound holds on average over calibration sets. Otherwise it holds with this probability.
        by, small
            Whether the bound holds over all examples (`all`) or in each domain (`domain`), and what happens with
            domains that have too few examples (`merge`, `silent`), as for `redx.RiskControl`; None: as before, at first
            in each domain where every class belongs to one.
        budget
            Whether the risk bounds all harm (`harm`), or the harm that routers do (`routing`); None: as before.
        choices
            Inputs and labels that every expert is tried on: one that harms more of them than it helps is put in
            quarantine. They may have been used before, but are no calibration examples. Without them the choice
            examples of the run are used; where there are none, no expert is put in quarantine.
        admit
            Names of experts that take part whatever their trial says.

        Returns
        -------
        RiskControl
            The risk, the cut-offs and the thresholds of the examples.

        Examples
        --------
        >>> import redx
        >>> model = redx.load("runs/intents")  # doctest: +SKIP
        >>> model.calibrate(risk=0.005).cutoffs.simplex  # doctest: +SKIP
        """
        self._check_controlled()
        self.admit(admit)
        if inputs is None and choices is None and not admit:
            self.control = self.current_control().at(risk, confidence, by, small, budget)
            return self.control
        if choices is not None:
            tried = self._labelled(*choices)
            self.use_examples(choices=partial(as_given, tried))
        if inputs is None:
            if self.calibration_set is None:
                raise RedxError("This model holds no calibration examples; give some with their labels.")
            split = self.calibration_set()
            if risk is None and self.control is not None:
                risk, confidence = self.control.risk, confidence or self.control.confidence
        else:
            split = self._labelled(inputs, labels)
        control = self._compute_control(split, risk, confidence, by=by, small=small, budget=budget)
        self.calibration_set, self.control, self.compared = partial(as_given, split), control, {}
        return control

    def export_thresholds(self, inputs: Inputs, labels: Sequence[Any], file: str | Path) -> OwnerFile:
        """Write the thresholds of an owner's examples, for the integrator's `calibrate_from`; no example leaves.

        Parameters
        ----------
        inputs, labels
            Examples of the owner's domain, or of several, that nothing was trained or chosen on. The label of each
            names its domain.
        file
            The JSON file to write; there must be none.

        Returns
        -------
        OwnerFile
            What the file holds.
        """
        from redx.model.thresholds import measure_own

        self._check_controlled()
        sent = measure_own(self, self._labelled(inputs, labels))
        write_owner_file(Path(file), sent)
        return sent

    def calibrate_from(
        self,
        files: Sequence[str | Path],
        *,
        risk: float | None = None,
        confidence: float | None = None,
        budget: str | None = None,
        seed: int | None = None,
    ) -> RiskControl:
        """Keep the risk in every domain by the thresholds that its owner computed.

        The experts are silent in domains without a file and in those with too few examples.

        Parameters
        ----------
        files
            What owners send, as `export_thresholds` writes it.
        risk, confidence, budget
            As for `calibrate`; the risk is 0.01 by default.
        seed
            Seed of the run that the model is from, for messages.
        """
        from redx.model.thresholds import check_owner_files

        self._check_controlled()
        sent = {str(file): read_owner_file(Path(file)) for file in files}
        if len(sent) < len(files):
            raise RedxError("A file of thresholds is given twice; give every file once.")
        check_owner_files(self, sent, seed)
        before, (class_domains, names) = self.current_control(), self._class_domains()
        self.control = join_owners(
            sent,
            risk,
            class_domains=class_domains or (),
            domain_names=names,
            confidence=confidence,
            budget=budget or before.budget,
            score=before.score,
            experts=list(self.experts),
            answers=before.answers,
            trials=before.trials,
        )
        return self.control

    def measure(self, split: Split) -> RiskControl:
        """Return the thresholds of examples as features, with the quarantine that stands; its risk is of no account."""
        bank_id, before, (class_domains, names) = (
            self.config.controlled_bank,
            self.current_control(),
            self._class_domains(),
        )
        assert bank_id is not None
        record, ownership = self._outputs(split, bank_id)
        known = {"experts": list(self.experts), "class_domains": class_domains, "domain_names": names}
        return RiskControl(1.0, score=before.score).calibrate(
            self._scored(record, ownership, before.quarantined), **known
        )

    def _check_controlled(self) -> None:
        self._check_fitted()
        self._check_experts()
        if self.config.controlled_bank is None:
            raise RedxError("This model has no experts under risk control; make a run with the bank residual/risk.")

    def admit(self, names: Sequence[str]) -> None:
        """Let experts take part whatever their trial says, from the next calibration on.

        An expert that replaces one of them is tried again.

        Parameters
        ----------
        names
            Names of the experts.
        """
        if unknown := sorted(set(names) - set(self.experts.names)):
            raise RedxError(f"There is no expert {unknown[0]!r} to admit; choose from {', '.join(self.experts.names)}.")
        self._admitted |= set(names)

    def _labelled(self, inputs: Inputs, labels: Sequence[Any] | None) -> Split:
        """Return a user's examples as features; their domains are not given."""
        if labels is None:
            raise RedxError("Calibration needs the true label of every example; give as many labels as inputs.")
        plain = _plain(labels)
        _check_count(inputs, plain, "label")
        indices = _indices(list(map(str, plain)), self.classes) if self.classes else torch.tensor(list(map(int, plain)))
        return Split(self.embed(inputs), indices, torch.full_like(indices, -1))

    def _compute_control(
        self,
        split: Split,
        risk: float | None,
        confidence: float | None,
        bank_id: BankId | None = None,
        by: str | None = None,
        small: str | None = None,
        budget: str | None = None,
    ) -> RiskControl:
        """Return the calibration of the present experts, by default in the main bank, on features with labels.

        Where no setting is given, what was chosen before stays chosen. The trial of the experts is that of the main
        bank: one in quarantine is out everywhere.
        """
        main = self.config.controlled_bank
        bank_id = bank_id or main
        assert bank_id is not None
        before, (class_domains, names) = self.control, self._class_domains()
        kept = before or self.config
        wanted = by or ("all" if class_domains is None else "domain")
        if by is None and before is not None and (before.class_domains is None) == (class_domains is None):
            wanted = before.by
        elif by is None and before is None:
            wanted = self.config.by or wanted
        elif by is None and before is not None and before.by == "domain" and class_domains is None:
            log.warning("some classes belong to several experts now, so the risk is kept over all examples together")
        head = None if class_domains is not None else self._domain_head(before)
        if head is not None:
            names = [*head.names]
        promise: dict[str, Any] = {"by": wanted, "small": small or kept.small, "budget": budget or kept.budget}
        control = RiskControl(risk, confidence, self.config.score, **promise)
        trials = self._try_experts(risk) if bank_id == main or before is None else before.trials
        control.trials = tuple(trials)
        record, ownership = self._outputs(split, bank_id)
        if head is not None:
            record = replace(record, named=name_domains(head.weight, split.inputs))
        answers = bool(self.experts.new_classes) and self.experts.own_classes() is not None
        known = {"experts": list(self.experts), "answers": answers, "trials": trials}
        known |= {"class_domains": class_domains, "domain_names": names, "head": head and head.weight}
        return control.calibrate(self._scored(record, ownership, control.quarantined), **known)

    def _outputs(self, split: Split, bank_id: BankId) -> tuple[Parts, Tensor]:
        """Return the record of features with labels in a bank, without gates, and the ownership scores, (N, K)."""
        base, residuals = (output / self.info.unit for output in self.experts.run(bank_id, split.inputs))
        ownership = self.experts.ownership_scores(split.inputs)
        parts = Parts(base, residuals, torch.zeros_like(ownership), split.labels, self._true_domains(split))
        return parts, _full_ownership(self.experts, parts, ownership)

    def _scored(self, parts: Parts, ownership: Tensor, quarantined: Tensor | None) -> Parts:
        """Return the record with the confidences of all experts."""
        silence = self._silence(quarantined)
        return parts.with_confidences(
            confidences(self.config.score, parts.base, parts.residuals, ownership, None, *silence), None
        )

    def _true_domains(self, split: Split) -> Tensor:
        """Return the domain of every example as `domain_names` counts them, (N,): as given, or else by its class."""
        domains, (class_domains, names) = torch.full_like(split.domains, -1), self._class_domains()
        if class_domains is not None and len(split):
            place = [self.domain_names.index(name) if name in self.domain_names else -1 for name in names]
            domains = torch.tensor([place[domain] for domain in class_domains])[split.labels.clamp_min(0)]
        given = split.domains >= 0
        domains[given] = self.expert_index(split.domains[given])
        return domains.masked_fill(~given & (split.labels < 0), -1)

    def _try_experts(self, risk: float | None) -> Sequence[Trial]:
        """Return how every expert does on the choice examples; nothing where there are none."""
        bank_id, split = self.config.controlled_bank, self.choices() if self.choices is not None else None
        if bank_id is None or split is None or not len(split):
            return ()
        record, ownership = self._outputs(split, bank_id)
        labelled = record.known
        record, ownership = record.only(labelled), ownership[labelled]
        if not len(record):
            return ()
        before = () if self.control is None else zip(self.control.experts, self.control.trials, strict=False)
        kept = {id(expert) for expert, trial in before if trial.admitted}  # not one that has replaced it
        admitted = [
            place for place, expert in enumerate(self.experts) if expert.name in self._admitted or id(expert) in kept
        ]
        self._admitted = frozenset()  # the trials say it from now on
        chosen = DEFAULT_RISK if risk is None else risk
        claims = self._class_domains()[0] is not None  # else nobody can say which examples are an expert's own
        record = replace(record, gates=ownership.to(record.gates.dtype))
        parts_without = partial(self._scored, record, ownership)
        return try_experts(parts_without, len(self.experts), chosen, admitted, claims=claims)

    def _domain_head(self, before: RiskControl | None) -> DomainHead | None:
        """Return the domain head of the base: of the shared examples, or else as it was calibrated before."""
        if self.base.known > 1 and self.anchor_data is not None:
            shared = self.anchor_data()
            if self._head is None or self._head[0] is not self.anchor_data:
                self._head = self.anchor_data, fit_domain_head(shared, self.info.domains)
            return self._head[1]
        if before is None or before.head is None:
            return None
        return DomainHead(before.head, before.domain_names)

    def _class_domains(self) -> tuple[list[int] | None, list[str]]:
        """Return the domain of every class as an index, and the names of the domains; None where classes are shared.

        Where the base does not say it, a class belongs to the one expert that has examples of it. Classes of no expert
        are a domain of their own.
        """
        if not self.classes:
            return None, []
        own = self.experts.own_classes()
        if min(self.info.belongs, default=-1) < 0 and own is not None and bool((own.sum(0) <= 1).all()):
            owned, names = own.any(0), list(self.experts.names)
            domains = torch.where(owned, own.long().argmax(0), len(names)).tolist()
            return domains, [*names, *([] if owned.all() else [UNOWNED])]
        names, domains = list(self.info.domains), list(self.info.belongs)
        for label in self.experts.new_classes:
            owner = self.experts.owner_of(label)
            if owner is not None and owner not in names:
                names.append(owner)
            domains.append(-1 if owner is None else names.index(owner))
        return (domains, names) if min(domains, default=-1) >= 0 else (None, [])

    # --- abstention

    def is_unfamiliar(self, inputs: Inputs, rate: float = 0.05) -> Tensor:
        """Return which inputs look like none of the known classes, (N,).

        Parameters
        ----------
        inputs
            What the task reads.
        rate
            Largest share of inputs of known classes that may look unfamiliar.
        """
        return self.features_unfamiliar(self.embed(inputs), rate)

    def features_unfamiliar(self, h: Tensor, rate: float = 0.05) -> Tensor:
        """Return what `is_unfamiliar` returns, for features, (N, E) to (N,)."""
        score, cutoff = self._familiarity(rate)
        return score(h) < cutoff

    def _familiarity(self, rate: float) -> tuple[Callable[[Tensor], Tensor], float]:
        """Return the score of features, and the cut-off that keeps the rate of false abstentions."""
        if not self.info.classes:
            raise RedxError("This model answers with numbers and knows no classes; leave out abstain.")
        if self.anchor_data is None or self.calibration_set is None:
            raise RedxError("This model has no shared examples to compare with; load it from its run folder.")
        known, compared = self._known_examples, self.base.encoder.abstention_features
        now = self.anchor_data, self.calibration_set, tuple(self.experts)  # experts may bring classes
        if known is None or known[0] != now:
            anchors, held = self.anchor_data(), self.calibration_set()
            means = class_means(anchors.inputs[:, compared], anchors.labels)
            means = torch.cat([means, *self._new_class_means(anchors.inputs)])
            known = self._known_examples = now, means, familiarity(held.inputs[:, compared], means)
        _, means, scores = known
        return lambda h: familiarity(h[:, compared], means), abstention_cutoff(scores, rate)

    def _new_class_means(self, like: Tensor) -> list[Tensor]:
        """Return the mean features of the classes that each expert brings, as compared, with the dtype of features."""
        means = [expert.tensors("new_classes").get("means", like[:0]) for expert in self.experts if expert.new_classes]
        means = [mean.to(like.dtype) for mean in means if mean.shape[1:] == like.shape[1:]]
        compared = self.base.encoder.abstention_features
        return means if compared == slice(None) else [normalize(mean[:, compared], dim=-1) for mean in means]

    def domain_of_answer(self, predicted: int) -> str | None:
        """Return the domain that a class belongs to, by its index; None where it belongs to several or to none."""
        if not self.classes or predicted < len(self.info.classes):
            index = self.info.belongs[predicted] if self.classes else -1
            return self.info.domains[index] if index >= 0 else self._only_owner(predicted)
        return self.experts.owner_of(self.classes[predicted])

    def _only_owner(self, predicted: int) -> str | None:
        """Return the expert that alone was trained on a class; None where several were, or domains were given."""
        if self.info.domains or not self.classes:
            return None
        label = self.classes[predicted]
        owners = [expert.name for expert in self.experts if label in expert.info.get("classes", ())]
        return owners[0] if len(owners) == 1 else None

    def label(self, predicted: int) -> Any:
        """Return an answer as users read it: a label by its index, or the number of a regression."""
        return self.classes[predicted] if self.classes else predicted


def _full_ownership(library: ExpertLibrary, parts: Parts, ownership: Tensor, columns: Tensor | None = None) -> Tensor:
    """Return the ownership scores, (N, K); where experts bring classes, each with the log-odds of its own answer added.

    An expert was never trained on the new classes of the others, so its ownership score may be high on them. Its answer
    is a second opinion: the log-odds of its own classes, from another network that was trained on the same examples.
    Where record and scores hold some experts alone, (N, T), `columns` says which of the library.
    """
    own = library.own_classes() if library.new_classes else None
    if own is None:
        return ownership
    own = own.to(ownership.device)
    return ownership + own_class_score(parts.base[:, None] + parts.residuals, own if columns is None else own[columns])


def _compose(rule: Rule, parts: Parts) -> Tensor:
    """Return the scores of the composed answers under the rule's own weights, chunk by chunk: (N, C)."""
    scores = [compose(rule, part) for _, part in parts.chunks()]
    return torch.cat(scores) if scores else parts.base


def is_own(backbone: Backbone) -> bool:
    """Return whether a backbone is the user's own module or function, and no name."""
    return backbone is not None and not isinstance(backbone, str)


def as_given(value: Any) -> Any:
    """Return what is given, such as the inputs of a user's own backbone."""
    return value


def _check_count(inputs: Any, values: Sequence[Any], what: str) -> None:
    """Refuse labels or domains that are not as many as the inputs."""
    if (rows := count_rows(inputs)) != len(values):
        raise RedxError(f"There are {rows} inputs and {len(values)} {what}s; give one {what} for each input.")


def _plain(values: Any) -> list[Any]:
    """Return labels or names as a list of plain values."""
    return values.tolist() if isinstance(values, Tensor | np.ndarray) else list(values)


def _indices(names: Sequence[str], known: Sequence[str]) -> Tensor:
    """Return the index of every name among those known, (N,)."""
    places = {name: place for place, name in enumerate(known)}
    if unknown := [name for name in names if name not in places]:
        raise RedxError(f"There is no class {unknown[0]!r:.100}; choose from {', '.join(list(places)[:20])}.")
    return torch.tensor([places[name] for name in names])
