"""Stacked experts give what the loop over experts gives, whatever lies beside them."""

import gc
import itertools

import pytest
import torch
from torch import Tensor

from redx.config import BankConfig, BankId, OwnershipConfig, TrunkConfig
from redx.models.banks import Bank, build_bank, initialise_bank, run_bank, split_bank
from redx.models.base import Base
from redx.models.encoder import FeatureEncoder, FeatureTrunk
from redx.models.expert import Expert
from redx.models.library import ExpertLibrary
from redx.models.stack import SLOTS, Members, Stack
from redx.seeding import generator

PLAIN = BankId("residual", "plain")
SHAPES = {
    "lowrank": BankConfig(shape="lowrank", hidden=5),
    "mlp": BankConfig(shape="mlp", hidden=16, depth=2),
    "linear": BankConfig(shape="linear", scale=0.1),
}


def make_base(width: int = 24, outputs: int = 7) -> Base:
    draw = generator(0, "test")
    weight = torch.randn(width, outputs, generator=draw)
    encoder = FeatureEncoder(FeatureTrunk(TrunkConfig()))
    return Base(encoder, weight, torch.zeros(outputs), torch.zeros(width), torch.ones(width))


def draw_bank(config: BankConfig, base: Base, count: int, seed: int = 0) -> Bank:
    bank = build_bank(config, count, base)
    initialise_bank(bank, [generator(seed, "expert", str(index)) for index in range(count)])
    for parameter in bank.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator(seed, "more"))
    return bank


def make_expert(name: str, config: BankConfig, base: Base, seed: int, score: str = "binary") -> Expert:
    tensors = {f"{PLAIN}.{key}": value for key, value in split_bank(draw_bank(config, base, 1, seed))[0].items()}
    draw = generator(seed, "owner")
    if score == "binary":
        scorer = {
            "weights.0": torch.randn(base.width, 8, generator=draw),
            "weights.1": torch.randn(8, 1, generator=draw),
            "biases.0": torch.randn(1, 8, generator=draw),
            "biases.1": torch.randn(1, 1, generator=draw),
        }
    else:
        scorer = split_bank(draw_bank(OWNERSHIP.bank, base, 1, seed))[0]
        scorer["classes"] = (torch.arange(base.outputs) % 3 == seed % 3).float()
    return Expert({"domain": name}, tensors | {f"ownership.{key}": value for key, value in scorer.items()})


OWNERSHIP = OwnershipConfig(kind="classes", bank=SHAPES["lowrank"])
TRAINED = OwnershipConfig(kind="binary", bank=BankConfig(shape="mlp", hidden=8, depth=1))


def make_library(count: int, config: BankConfig, ownership: OwnershipConfig = TRAINED) -> ExpertLibrary:
    base = make_base()
    names = [f"expert {index}" for index in range(count)]
    experts = {name: make_expert(name, config, base, index, ownership.kind) for index, name in enumerate(names)}
    risk = config.model_copy(update={"controlled": True, "experts_of": PLAIN})
    return ExpertLibrary(experts, base, {PLAIN: config, BankId("residual", "risk"): risk}, ownership)


def loop(library: ExpertLibrary, bank_id: BankId, h: Tensor) -> Tensor:
    """Return what every expert gives by itself."""
    config = library.banks[bank_id]
    return torch.stack([run_bank(expert.bank(bank_id, config, library.base), h)[:, 0] for expert in library], 1)


def draw_features(count: int) -> Tensor:
    return torch.randn(count, 24, generator=generator(count, "features"))


@pytest.mark.parametrize("examples", [1, 3, 40, 200])
@pytest.mark.parametrize("ownership", [TRAINED, OWNERSHIP], ids=["binary", "classes"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_stack_gives_the_bits_of_the_loop(shape: str, ownership: OwnershipConfig, examples: int) -> None:
    library, h = make_library(6, SHAPES[shape], ownership), draw_features(examples)
    for bank_id in library.banks:
        assert torch.equal(library.outputs(bank_id, h), loop(library, bank_id, h))
    expected = torch.stack([expert.ownership(ownership, library.base).ownership_scores(h) for expert in library], 1)
    assert torch.equal(library.ownership_scores(h), expected)


@pytest.mark.parametrize("examples", [1, 2, 33])
def test_outputs_do_not_depend_on_neighbours_or_on_the_order_of_adding(examples: int) -> None:
    library, h = make_library(5, SHAPES["mlp"]), draw_features(examples)
    experts, together = list(library), library.outputs(PLAIN, h)
    for order in itertools.islice(itertools.permutations(experts), 0, 120, 17):
        other = ExpertLibrary({}, library.base, library.banks, library.ownership)
        for expert in order:
            other.put(expert)
            other.outputs(PLAIN, h)  # each gets its slot in this order
        assert torch.equal(other.outputs(PLAIN, h), together)
    for name in library.names:
        column = library.names.index(name)
        alone = library.subset([name])
        assert torch.equal(alone.outputs(PLAIN, h)[:, 0], together[:, column])
        removed = library.remove(name)
        assert torch.equal(library.outputs(PLAIN, h), together[:, [k for k in range(5) if k != column]])
        library.put(removed)
        assert torch.equal(library.outputs(PLAIN, h), together)


@pytest.mark.parametrize("examples", [0, 1, 50])
def test_only_the_experts_that_are_asked_run(examples: int) -> None:
    library, h = make_library(6, SHAPES["lowrank"]), draw_features(examples)
    scores = torch.rand(examples, 6, generator=generator(1, "first"))
    scores[:, 4] = -1  # nobody asks this one
    first = scores.topk(2).indices
    for bank_id in library.banks:
        values = library.run(bank_id, h, first)[1]
        expected = library.outputs(bank_id, h).gather(1, first[..., None].expand(-1, -1, 7))
        assert values.shape == (examples, 2, 7)
        torch.testing.assert_close(values, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("inner", [8, 64, 99])
def test_single_outputs_have_the_bits_of_the_loop_in_any_size(inner: int) -> None:
    base = make_base()
    shape = BankConfig(shape="mlp", hidden=inner, depth=1)
    base = Base(base.encoder, base.weight[:, :1], base.bias[:1], base.mean, base.scale)
    experts = {f"e{index}": make_expert(f"e{index}", shape, base, index) for index in range(7)}
    library = ExpertLibrary(experts, base, {PLAIN: shape}, TRAINED)
    for examples in (*range(1, 30), 60, 130):
        h = draw_features(examples)
        assert torch.equal(library.outputs(PLAIN, h), loop(library, PLAIN, h))


def test_chunks_grow_and_experts_run_across_them() -> None:
    config, count = SHAPES["lowrank"], 3 * SLOTS
    library, h = make_library(count, config), draw_features(20)
    outputs = library.outputs(PLAIN, h)
    chunks = {id(chunk): chunk.slots for chunk, _ in library._stacks._stacks[PLAIN]._slots.values()}
    assert sorted(chunks.values()) == [SLOTS, SLOTS, 2 * SLOTS]
    assert torch.equal(outputs, loop(library, PLAIN, h))
    first = torch.rand(20, count, generator=generator(2, "first")).topk(3).indices.sort(-1).values
    expected = outputs.gather(1, first[..., None].expand(-1, -1, 7))
    torch.testing.assert_close(library.run(PLAIN, h, first)[1], expected, rtol=1e-6, atol=1e-6)


def test_adding_an_expert_copies_no_other() -> None:
    base, config = make_base(), SHAPES["lowrank"]
    experts = [make_expert(f"e{index}", config, base, index) for index in range(SLOTS + 2)]
    stack = Stack()
    slots = [stack.slot(expert, expert.bank(PLAIN, config, base)) for expert in experts[:-1]]
    first, second = slots[0][0], slots[-1][0]
    assert first is not second
    before = [weight.data_ptr() for weight in (*first.weights, *second.weights)]
    versions = [weight._version for weight in first.weights]
    assert stack.slot(experts[-1], experts[-1].bank(PLAIN, config, base))[0] is second
    assert [weight.data_ptr() for weight in (*first.weights, *second.weights)] == before
    assert [weight._version for weight in first.weights] == versions


def test_a_slot_is_used_again_when_its_expert_is_gone() -> None:
    base, config = make_base(), SHAPES["mlp"]
    stack, h = Stack(), draw_features(4)
    kept, gone = (make_expert(name, config, base, seed) for seed, name in enumerate(("kept", "gone")))
    kept_slot = stack.slot(kept, kept.bank(PLAIN, config, base))
    freed = stack.slot(gone, gone.bank(PLAIN, config, base))
    del gone
    gc.collect()
    new = make_expert("new", config, base, 5)
    assert stack.slot(new, new.bank(PLAIN, config, base)) == freed
    assert stack.slot(kept, kept.bank(PLAIN, config, base)) == kept_slot
    outputs = stack.run(Members([new, kept], [one.bank(PLAIN, config, base) for one in (new, kept)]), h)
    for column, expert in enumerate((new, kept)):
        assert torch.equal(outputs[:, column], run_bank(expert.bank(PLAIN, config, base), h)[:, 0])


def test_experts_of_several_shapes_run_side_by_side() -> None:
    base, h = make_base(), draw_features(9)
    experts = {name: make_expert(name, config, base, 1) for name, config in SHAPES.items()}
    banks = [expert.bank(PLAIN, SHAPES[name], base) for name, expert in experts.items()]
    outputs = Stack().run(Members(list(experts.values()), banks), h)
    for column, bank in enumerate(banks):
        assert torch.equal(outputs[:, column], run_bank(bank, h)[:, 0])


def test_double_precision_gets_slots_of_its_own() -> None:
    library, h = make_library(3, SHAPES["mlp"]), draw_features(5)
    before = library.outputs(PLAIN, h)
    library.apply(torch.Tensor.double)
    after = library.outputs(PLAIN, h.double())
    assert after.dtype == torch.float64
    torch.testing.assert_close(after.float(), before, rtol=1e-5, atol=1e-5)
