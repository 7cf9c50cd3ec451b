"""The scikit-learn face: a classifier that splits, trains, composes and certifies by itself, for arrays or texts."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Sequence
from dataclasses import fields
from numbers import Integral, Real
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from redx.composition import rules
from redx.composition.evaluation import certify
from redx.composition.parts import Parts
from redx.config import BankConfig, OwnershipConfig, RouterConfig, RunConfig, TrainingConfig, TrunkConfig
from redx.config import BaseConfig as Learning
from redx.data.clusters import MAX_DEVIATIONS, cluster_domains
from redx.data.dataset import Split
from redx.data.splits import classes_are_disjoint, sample_per_group
from redx.errors import RedxError
from redx.io import files
from redx.models import fingerprint, trunks
from redx.models.backbones import hub
from redx.models.backbones.language import load_lower_half
from redx.models.banks import average_bank, build_bank, fill_bank
from redx.models.base import Base
from redx.models.composed import Key, Model, ModelInfo
from redx.models.expert import Expert
from redx.models.library import ExpertLibrary, to_double, with_raised_cutoffs
from redx.models.router import NetworkRouter as Gates
from redx.seeding import generator
from redx.training import datasets
from redx.training.banks import train_pooled
from redx.training.base import train_small_base
from redx.training.datasets import SharedData
from redx.training.experts import train_experts
from redx.training.router import train_router

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import Tags, check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data
except ImportError as error:
    raise RedxError(
        "RedClassifier needs scikit-learn 1.6 or newer; install with `pip install 'redx[sklearn]'`."
    ) from error

Arrays = dict[str, np.ndarray]
BATCH = 64  # examples a step sees
STEPS = 120  # of each stage at least, unless told how many epochs
EPOCHS = 10  # at least, unless told
LR = 5e-3  # of AdamW: few steps, small networks
ROWS = 8192  # examples that are asked about at once
ALPHA = 0.01  # the smallest that is chosen for a user
CHOICES = {
    "rule": tuple(rules.RULES),
    "experts": ("owned", "anchored", "plain"),
    "anchor": ("margin", "truth", "size"),
    "router": ("keys", "mlp", "linear"),
}


class Refused(RedxError, ValueError):
    """A user's mistake, as scikit-learn expects to hear of it."""


class RedClassifier(ClassifierMixin, BaseEstimator):
    """A base, an expert a domain, each trained alone, and a rule that puts them together.

    Parameters
    ----------
    rule : how the answer is composed, any of `redx.RULES`; it may be changed after `fit` among rules of the same form.
        `oracle` and `red-oracle` must be told the domains when they are asked.
    experts : `owned` are held by anchors and speak only above their conformal cut-off; `anchored` are held by anchors
        alone; `plain` learn their own domain and nothing else.
    anchor : what holds an expert outside its domain: the `margin` of the base, the `truth`, or a small `size`.
    alpha : how often an owned expert may speak out of turn. A small one needs many examples: 1/alpha - 1 held out
        outside every domain. None: the smallest that the held-out examples support, but not below 0.01.
    router : `keys` are the experts' own scores, so experts can come and go; `mlp` and `linear` are trained on all
        domains together and have a fixed number of gates.
    share : part of the training data that the base sees and every expert is held by; one of each class and domain
        at least.
    held_out : part of the data that sets the cut-offs of owned experts and teaches nothing.
    n_domains : clusters that become domains where none are given.
    hidden : width of the base's layer.
    rank : rank of each expert's correction.
    epochs : passes over the data in each stage; None: enough for the data's size.
    backbone : a frozen language model, a name or a folder; X is then a sequence of texts.
    random_state : an int makes the result repeatable.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_ : as everywhere in scikit-learn.
    domains_ : names of the domains it was fitted on.
    alpha_ : the alpha that is promised.
    model_ : the composed `redx.Model`; `model_.explain(X)` tells weights, contributions and radius.
    """

    def __init__(
        self,
        rule: str = "red",
        *,
        experts: str = "owned",
        anchor: str = "margin",
        alpha: float | None = None,
        router: str = "keys",
        share: float = 0.3,
        held_out: float = 0.2,
        n_domains: int = 3,
        hidden: int = 64,
        rank: int = 16,
        epochs: int | None = None,
        backbone: str | None = None,
        random_state: Any = None,
    ) -> None:
        self.rule = rule
        self.experts = experts
        self.anchor = anchor
        self.alpha = alpha
        self.router = router
        self.share = share
        self.held_out = held_out
        self.n_domains = n_domains
        self.hidden = hidden
        self.rank = rank
        self.epochs = epochs
        self.backbone = backbone
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = self.backbone is not None
        tags.input_tags.two_d_array = self.backbone is None
        return tags

    # --- learning

    def fit(self, X: Any, y: Any, domains: Any = None) -> RedClassifier:
        """Train base, experts and router; without `domains`, clusters of the data are the domains."""
        self._check_parameters()
        raw, y = self._take(X, y, reset=True)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise Refused("RedClassifier tells classes apart, but y has 1 class; give examples of at least two.")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with torch.random.fork_rng(devices=[]):  # whatever is drawn here, nobody else's draws change
            self._train(raw, labels, domains, seed)
        return self

    def _train(self, raw: np.ndarray, labels: np.ndarray, domains: Any, seed: int) -> None:
        held, places, self.domains_ = self._arrange(raw, labels, domains, seed)
        cells = places * len(self.classes_) + labels
        shared = np.flatnonzero(~held)
        shared = shared[sample_per_group(cells[shared], self.share, 1, generator(seed, "shared subset"))]
        spread = raw[shared].std(0)
        self._mean = raw[shared].mean(0)
        self._scale = np.where(spread > 1e-9 * np.abs(self._mean), spread, 1.0)  # nothing to divide by: as it is
        x = self._standardise(raw).float()
        every = Split(x, torch.from_numpy(labels), torch.from_numpy(places))
        own_classes = domains is not None and classes_are_disjoint(places, labels)
        strangers = min(int((held & (places != place)).sum()) for place in range(len(self.domains_)))
        self.alpha_ = self.alpha or max(ALPHA, 1 / (strangers + 1))
        self._config = self._configure(len(shared), int((~held).sum()), own_classes, seed)
        subset = every.only(torch.from_numpy(shared))
        base = train_small_base(self._config.base.training, subset, self.hidden, len(self.classes_), seed)
        every = Split(base.embed(x), every.labels, every.domains)
        train, rest = every.only(torch.from_numpy(~held)), every.only(torch.from_numpy(held))
        self._base, self._names = base, tuple(map(str, self.classes_))
        self._shared = SharedData(every.only(torch.from_numpy(shared)), rest)
        self._mark = fingerprint.fingerprint_base(base, self._config, self._names, (raw.shape[1],))
        if self.backbone is not None:
            self._mark["backbone"] = hub.hash_model(hub.model_folder(self.backbone))
        taught = datasets.expert_datasets(self.domains_, train, self._shared, rest)
        made = self._school(taught)
        self._router = self._pooled = None
        if self.router != "keys":
            self._router = train_router(self._config, self.domains_, train, rest, seed)
        if self._config.of_form("pooled"):
            self._pooled = train_pooled(self._config, base, train, rest, seed, 1.0)
        self._compose(made)

    def _arrange(
        self, raw: np.ndarray, labels: np.ndarray, domains: Any, seed: int
    ) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
        """Which examples are held out, the domain of each example, and the domains' names."""
        draw, part = generator(seed, "held out"), self.held_out if self.experts == "owned" else 0.0
        if domains is None:
            held = sample_per_group(labels, part, 0, draw)
            places = cluster_domains(raw, ~held, labels, self.n_domains, seed)
            return held, places, tuple(f"cluster-{place + 1}" for place in range(places.max() + 1))
        check_consistent_length(raw, domains)
        names, places = np.unique([str(name) for name in column_or_1d(domains)], return_inverse=True)
        if len(names) < 2:
            raise Refused("There is one domain only; give at least two, or leave out `domains` to have them found.")
        held = sample_per_group(places * len(self.classes_) + labels, part, 0, draw)
        return held, places, tuple(map(str, names))

    def _configure(self, shared: int, rows: int, own_classes: bool, seed: int) -> RunConfig:
        """The settings of every stage; experts take as many epochs as a domain of middling size needs."""
        training = self._training(rows // len(self.domains_))
        plain = BankConfig(shape="lowrank", hidden=self.rank, dropout=0.1, training=training)
        head = BankConfig(shape="mlp", hidden=self.hidden, depth=1, training=training)
        kind = "plain" if self.experts == "plain" else "anchored"
        if kind == "anchored":
            plain = plain.model_copy(update={"anchor": self.anchor})
            head = head.model_copy(update={"anchor": "truth"})
        main = "owned" if self.experts == "owned" else kind
        banks = {f"residual/{kind}": plain}
        if self.experts == "owned" or self.router == "keys":  # either way each expert has to know what is its own
            owned = plain.model_copy(update={"of": f"residual/{kind}", "owned": True})
            banks["residual/owned"] = owned
        form = rules.get_rule(self.rule).form
        if form in ("standalone", "averaged"):
            banks[f"standalone/{kind}"] = head
        if form == "pooled":
            banks["pooled/mlp"] = head.model_copy(update={"anchor": "none", "training": self._training(rows)})
        scorer = plain.model_copy(update={"anchor": "truth", "anchor_weight": 4.0}) if own_classes else head
        return RunConfig(
            task="scikit-learn",
            seeds=(seed,),
            banks=banks,
            main={"residual": main, "standalone": kind, "pooled": "mlp", "averaged": kind},
            base=Learning(
                share=self.share,
                trunk=TrunkConfig(shape="mlp", hidden=self.hidden, depth=1),
                training=self._training(shared),
            ),
            ownership=OwnershipConfig(alpha=self.alpha_, score="classes" if own_classes else "binary", bank=scorer),
            router=RouterConfig.model_validate(
                {"shape": self.router, "hidden": self.hidden, "dropout": 0.1, "training": self._training(rows)}
            ),
        )

    def _training(self, rows: int) -> TrainingConfig:
        steps = math.ceil(max(1, rows) / BATCH)
        epochs = self.epochs or max(EPOCHS, math.ceil(STEPS / steps))
        return TrainingConfig(epochs=epochs, batch=BATCH, virtual_batch=BATCH, lr=LR, weight_decay=1e-2, warmup=0.1)

    def _school(self, taught: Sequence[datasets.ExpertData]) -> list[Expert]:
        """Train experts; say so where the data cannot support the promise of some."""
        made = train_experts(self._config, taught, self._base, self._config.seeds[0], 1.0, self._names, self._mark)
        if self.experts == "owned":
            silent = [expert.name for expert in made if expert.facts["ownership"]["cutoff"] is None]
            if silent:
                warnings.warn(
                    f"Nobody can promise alpha={self.alpha_:g} for {', '.join(silent)}: that takes "
                    f"{math.ceil(1 / self.alpha_) - 1} held-out examples outside the domain, and there are fewer; "
                    "these experts stay silent. Give more data or a larger alpha.",
                    stacklevel=4,
                )
        return [with_raised_cutoffs(expert) for expert in made]

    # --- asking

    def decision_function(self, X: Any, domains: Any = None) -> np.ndarray:
        """The composed logits, (N, C); for two classes the lead of the second, (N,)."""
        logits = self._logits(X, domains)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: Any, domains: Any = None) -> np.ndarray:
        """Softmax of the composed logits, (N, C)."""
        return torch.from_numpy(self._logits(X, domains)).softmax(-1).numpy()

    def predict(self, X: Any, domains: Any = None) -> np.ndarray:
        """The class of each example."""
        said = self._logits(X, domains).argmax(1)
        return self.classes_[said]

    def certified_radius(self, X: Any, domains: Any = None) -> np.ndarray:
        """The exact share of routing mass that may go anywhere without changing the answer; 1: any router, (N,)."""
        rule, parts = self._parts(X, domains)
        return certify(rule, parts).radius.numpy()

    def _logits(self, X: Any, domains: Any) -> np.ndarray:
        rule, parts = self._parts(X, domains)
        found = [
            rules.to_logits(rule, rules.compose(rule, part, rule.weights(part))) for _, part in parts.chunks()
        ]  # rules weigh example by example
        return torch.cat(found).numpy()

    def _parts(self, X: Any, domains: Any) -> tuple[rules.Rule, Parts]:
        """The record of these examples, in double precision: an answer must not depend on who stands beside it."""
        check_is_fitted(self, "model_")
        model = self.model_
        rule, bank = self._chosen()
        x = model.read(X)
        places = self._places(rule, len(x), domains)
        unknown = torch.full((ROWS,), -1)
        found = [
            model.describe(model.base.embed(some), bank, unknown[: len(some)], where)
            for some, where in zip(x.split(ROWS), places.split(ROWS), strict=True)
        ]
        return rule, Parts(*(torch.cat([getattr(part, field.name) for part in found]) for field in fields(Parts)))

    def _places(self, rule: rules.Rule, count: int, domains: Any) -> Tensor:
        """The expert that owns each example, as far as anybody said; -1: unknown."""
        if domains is None:
            if rule.name.endswith("oracle"):
                raise Refused(f"The rule {rule.name!r} must be told the domain of each example; give `domains`.")
            return torch.full((count,), -1)
        names = [str(name) for name in column_or_1d(domains)]
        if len(names) != count:
            raise Refused(f"There are {count} examples but {len(names)} domains; give one each.")
        place = {name: index for index, name in enumerate(self.model_.domains)}
        return torch.tensor([place.get(name, -1) for name in names])

    # --- experts that come and go

    def add_expert(self, X: Any, y: Any = None, domain: Any = None) -> str:
        """Take an expert in: trained now, alone, on examples of a new domain; or from its folder. Gives its name."""
        check_is_fitted(self, "model_")
        if y is None:
            if not isinstance(X, str | Path | Expert):
                raise Refused("Give the examples, labels and name of a domain, or the folder of an expert.")
            expert = X if isinstance(X, Expert) else Expert.read(X)
            self._check_gate(expert.name)
        else:
            if domain is None:
                raise Refused("The new domain has no name; give it as `domain`.")
            self._check_gate(str(domain))
            if str(domain) in self.model_.experts:
                raise Refused(f"There is an expert {str(domain)!r} already; remove it first.")
            raw, y = self._take(X, y)
            unknown = np.setdiff1d(y, self.classes_)
            if len(unknown):
                raise Refused(
                    f"The classifier was fitted without the class {unknown[0]!r}, and an expert mends answers but adds "
                    "no class; fit it anew with examples of that class in the data."
                )
            labels = torch.from_numpy(np.searchsorted(self.classes_, y))
            if self._config.ownership.score == "classes" and len(labels.unique()) == len(self.classes_):
                raise Refused(
                    "The domains have classes of their own here, by which an expert knows what is its own, but the new "
                    "domain has all classes; fit anew with this domain in the data."
                )
            place = self.domains_.index(str(domain)) if str(domain) in self.domains_ else -1
            own = Split(self._base.embed(self._standardise(raw).float()), labels, torch.full_like(labels, place))
            nothing = own.only(torch.arange(0))
            (expert,) = self._school([self._shared.lesson(str(domain), own, nothing, self.domains_)])
        name = self.model_.experts.add(expert)
        to_double(self.model_.experts)
        return name

    def remove_expert(self, name: Any) -> Expert:
        """Take an expert out; gives it, so that it can be added again."""
        check_is_fitted(self, "model_")
        return self.model_.experts.remove(str(name))

    def _check_gate(self, name: str) -> None:
        if self._router is not None and name not in self.domains_:
            raise Refused(
                f"The {self._config.router.shape} router has no gate for {name!r}, for its width is fixed; fit anew "
                'with this domain in the data, or choose router="keys", with which experts can come and go.'
            )

    # --- pieces

    def _check_choices(self) -> None:
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise Refused(f"{name}={getattr(self, name)!r} is not known; choose one of {', '.join(known)}.")

    def _check_parameters(self) -> None:
        self._check_choices()
        for name in ("alpha", "share", "held_out"):
            value, most = getattr(self, name), "at most 1" if name != "held_out" else "below 1"
            if name == "alpha" and value is None:
                continue
            if not isinstance(value, Real) or not 0 < float(value) <= 1 or (name == "held_out" and value == 1):
                raise Refused(f"{name}={value!r} is no share above 0 and {most}; choose one such as 0.1.")
        for name, least in {"n_domains": 2, "hidden": 1, "rank": 1, "epochs": 1}.items():
            value = getattr(self, name)
            if name == "epochs" and value is None:
                continue
            if not isinstance(value, Integral) or value < least:
                raise Refused(f"{name}={value!r} is no whole number from {least} on; choose a larger one.")

    def _chosen(self) -> tuple[rules.Rule, Key]:
        """The rule as it is set now, and the bank that it reads."""
        self._check_choices()
        rule = rules.get_rule(self.rule)
        bank = rule.form, self._config.main[rule.form]
        if bank not in self.model_.banks:
            why = "the experts have changed since" if rule.form == "averaged" else "none was trained"
            raise Refused(f"rule={self.rule!r} reads {rule.form} heads, and {why}; fit anew with this rule.")
        return rule, bank

    def _take(self, X: Any, y: Any = None, reset: bool = False) -> tuple[np.ndarray, Any]:
        """Examples as features in double precision, (N, F), and labels, checked as scikit-learn does."""
        if self.backbone is None:
            check: Any = validate_data  # its hints say less than it takes
            if y is None and not reset:
                return check(self, X, dtype=np.float64, reset=False), None
            return check(self, X, y, dtype=np.float64, reset=reset)
        texts = [] if isinstance(X, str) else [text for text in X if isinstance(text, str)]
        if isinstance(X, str) or not texts or len(texts) < len(X):
            raise Refused("With a backbone, X is a sequence of texts, such as ['What is 37 plus 12?']; give such.")
        if y is None and reset:
            raise Refused("This RedClassifier estimator requires y to be passed, but the target y is None.")
        if y is not None:
            check_consistent_length(texts, y)
            y = column_or_1d(y, warn=True)
        prefix = load_lower_half(self.backbone)
        if reset:
            prefix.prepare(texts)  # kept, for a search over parameters reads them again and again
        return prefix.read(texts).double().numpy(), y

    def _read(self, X: Any) -> Tensor:
        return self._standardise(self._take(X)[0])

    def _standardise(self, raw: np.ndarray) -> Tensor:
        return torch.from_numpy(((raw - self._mean) / self._scale).clip(-MAX_DEVIATIONS, MAX_DEVIATIONS))

    def _compose(self, made: Sequence[Expert]) -> None:
        """The composed model, in double precision."""
        config, domains = self._config, self.domains_
        base = Base.of(self._base.tensors(), self._encoder())
        outer = (tensor.double() for tensor in (base.weight, base.bias, base.mean, base.scale))
        sharp = Base(base.encoder.double(), *outer)
        library = ExpertLibrary(
            {expert.name: expert for expert in made},
            sharp,
            config.of_form("residual", "standalone"),
            config.ownership,
            functools.partial(dict, self._mark),
        )
        to_double(library)
        router = None
        if self._router is not None:
            router = Gates(sharp.width, len(domains), config.router.shape, config.router.hidden)
            router.load_state_dict(self._router)
            router.double()
        fixed = {}
        for key, settings in config.of_form("pooled").items():
            bank = fixed["pooled", key.split("/")[1]] = build_bank(settings, 1, sharp)
            fill_bank(bank, [files.without_prefix(self._pooled or {}, key)])
        whole = set(library.names) == set(domains)
        for key, settings in config.of_form("standalone").items() if whole else ():
            bank = fixed["averaged", key.split("/")[1]] = build_bank(settings, 1, sharp)
            fill_bank(bank, average_bank(library.stack(key)))
        for bank in fixed.values():
            bank.double()
        self.model_ = Model(
            facts=ModelInfo(domains, self._names, (-1,) * len(self._names), routed=domains if router else ()),
            config=config,
            read=self._read,
            base=sharp,
            experts=library,
            router=router,
            fixed=fixed,
            rule=self.rule,
        )

    def _encoder(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            return trunks.MLPTrunk(len(self._mean), self._config.base.trunk.hidden, 1, beside=True)

    # --- pickling: arrays and plain settings, from which the model is composed again

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(cast(Any, super().__getstate__()))
        if "model_" in state:
            made = [(expert.facts, _arrays(expert.tensors())) for expert in state.pop("model_").experts]
            state |= {
                "_base": _arrays(self._base.tensors()),
                "_shared": _arrays(self._shared.tensors()),
                "_config": self._config.model_dump(mode="json"),
                "_router": self._router and _arrays(self._router),
                "_pooled": self._pooled and _arrays(self._pooled),
                "_made": made,
            }
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        made = state.pop("_made", None)
        super().__setstate__(state)
        if made is not None:
            self._config = RunConfig.model_validate(state["_config"])
            self._base = Base.of(_tensors(state["_base"]), self._encoder())
            self._shared = SharedData.of(_tensors(state["_shared"]))
            self._router = state["_router"] and _tensors(state["_router"])
            self._pooled = state["_pooled"] and _tensors(state["_pooled"])
            with torch.random.fork_rng(devices=[]):
                self._compose([Expert(facts, _tensors(arrays)) for facts, arrays in made])


def _arrays(tensors: dict[str, Tensor]) -> Arrays:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def _tensors(arrays: Arrays) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
