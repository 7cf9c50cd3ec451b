"""The `lm` decomposer: a fine-tuned causal language model that writes the program of a question.

training   θ = argmin -Σ_t log P_θ(y_t | question, y_<t), where y is the program with its end token and θ are LoRA
           weights or the last blocks
decoding   y_t = argmax P_θ(y | question, y_<t) over the tokens that the grammar of programs allows
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from redx.config import TrainingConfig
from redx.errors import RedxError
from redx.io.progress import progress
from redx.models.backbones.causal import load_causal_model
from redx.models.backbones.hub import quiet_transformers
from redx.seeding import generator
from redx.tasks.arithmetic.decomposers.grammar import LIMIT, Constraint, Grammar, State, tokenise
from redx.tasks.arithmetic.program import Program
from redx.tasks.arithmetic.sentences import Language, language, sample, write
from redx.tasks.arithmetic.tokens import Token, tokens
from redx.training.loop import train

SAMPLES = 1_400  # training examples
STEP_COUNTS = (1, 2, 2, 3, 3, 3, 4, 4, 4, 4)  # steps of a training program, drawn with equal chances
STYLES = (*["plain"] * 8, *["paraphrase"] * 2)  # styles of training sentences, drawn with equal chances
RANK = 16  # of LoRA
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]  # matrices that LoRA adapts; without these names, all matrices
BATCH = 8  # training examples of a batch
LEARNING_RATE = 1e-3  # of LoRA; whole blocks are trained with a fifth of it
MAX_BATCH_TOKENS = 2**14  # tokens of questions that are decoded at once
MAX_PROGRAM_TOKENS = LIMIT * len("Step 12: x11 + 100 = x12\n") + len("Answer: x12") + 1  # a token per character, an end
IGNORED_LABEL = -100  # transformers' convention for tokens that do not count in the loss


class TrainingExample(NamedTuple):
    """The tokens of a question, and the tokens of its program with the end token."""

    question: list[int]
    program: list[int]


class Question(NamedTuple):
    """A question that is waiting to be decoded."""

    row: int  # its index among all texts
    prompt: list[int]  # its tokens
    start: State  # where the grammar begins


class LMDecomposer:
    """A fine-tuned language model: texts to programs.

    Parameters
    ----------
    model
        The language model; LoRA weights are merged into it.
    grammar
        The grammar of programs for its tokenizer.
    trained
        The trained parameters by name, which `tensors` returns.
    copy
        Whether operands must be numbers of the question, each used at most as often as it occurs there.
    """

    def __init__(self, model: Any, grammar: Grammar, trained: dict[str, nn.Parameter], copy: bool) -> None:
        self._tensors = {name: parameter.detach().cpu().clone() for name, parameter in trained.items()}
        # merged into the weights, LoRA costs no time
        self._model = model.merge_and_unload() if hasattr(model, "merge_and_unload") else model
        self._model.requires_grad_(False)
        self._grammar, self.copy = grammar, copy

    @classmethod
    def train(
        cls,
        seed: int,
        backbone: str = "smollm2-135m",
        samples: int = SAMPLES,
        words: Language | None = None,
        last_blocks: int | None = None,
        rank: int = RANK,
        rate: float | None = None,
        copy: bool = True,
        device: str = "cpu",
    ) -> LMDecomposer:
        """Train a decomposer in one pass over generated sentences of one to four steps.

        Parameters
        ----------
        seed
            Decides the sentences, the initial weights of LoRA and the order of the batches.
        backbone
            The language model, as `model_folder` takes it.
        samples
            Number of training sentences.
        words
            Templates of the sentences; the training templates by default.
        last_blocks
            Train this many of the last blocks instead of LoRA.
        rank
            Rank of LoRA.
        rate
            Peak learning rate.
        copy
            Whether operands must be numbers of the question.
        device
            Where the model runs.

        Returns
        -------
        LMDecomposer
            The trained decomposer.
        """
        model, grammar = load_causal_lm(backbone, device)
        draw = random.Random(f"{seed}/lm/sentences")
        words = words or language("train")
        examples = [draw_example(draw, words, grammar) for _ in range(samples)]
        examples.sort(key=lambda example: len(example.question) + len(example.program))  # batches of similar lengths
        batches = [examples[start : start + BATCH] for start in range(0, samples, BATCH)]
        with torch.random.fork_rng():
            torch.manual_seed(generator(seed, "lm", "start").initial_seed())
            model, trained = _open_for_training(model, last_blocks, rank)
        default_rate = LEARNING_RATE if last_blocks is None else LEARNING_RATE / 5
        train(
            list(trained.values()),
            lambda rows: loss(model, batches[int(rows)]).unsqueeze(0),  # (1,)
            [len(batches)],
            [generator(seed, "lm", "batches")],
            TrainingConfig(epochs=1, batch=1, virtual_batch=1, lr=rate or default_rate, weight_decay=0.0, warmup=0.1),
            title="lm",
        )
        return cls(model, grammar, trained, copy)

    def tensors(self) -> dict[str, Tensor]:
        """Return the trained parameters by name, without the other weights of the backbone, to be saved."""
        return dict(self._tensors)

    @classmethod
    def from_tensors(
        cls,
        tensors: dict[str, Tensor],
        backbone: str = "smollm2-135m",
        last_blocks: int | None = None,
        rank: int = RANK,
        copy: bool = True,
        device: str = "cpu",
    ) -> LMDecomposer:
        """Return the decomposer that `tensors` described.

        Parameters
        ----------
        tensors
            What `tensors` returned.
        backbone, last_blocks, rank, copy, device
            As in `train`; the first three must be those that it was trained with.
        """
        model, grammar = load_causal_lm(backbone, device)
        model, trained = _open_for_training(model, last_blocks, rank)
        if _shapes(tensors) != _shapes(trained):
            raise RedxError(f"These tensors are no lm decomposer for {backbone}; train it again with `redx run`.")
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.copy_(tensors[name])
        return cls(model, grammar, trained, copy)

    def decompose(self, texts: Sequence[str], max_batch_texts: int = 64) -> list[Program | RedxError]:
        """Return the program of every text, or the error of a text that cannot be read.

        Parameters
        ----------
        texts
            Questions in words.
        max_batch_texts
            Upper bound on the texts that are decoded at once.

        Returns
        -------
        list
            One program or error per text, in order.
        """
        programs: list[Program | RedxError] = []
        questions: list[Question] = []
        for row, text in enumerate(texts):
            try:
                words = tokens(text)
                numbers = [word.value for word in words if word.value is not None]
                questions.append(Question(row, self._prompt(words), self._grammar.start(numbers, self.copy)))
                programs.append(_UNREAD)
            except RedxError as error:
                programs.append(error)
        questions.sort(key=lambda question: len(question.prompt))  # batches of similar lengths
        with progress("decomposing", len(questions)) as advance:
            for batch in _decoding_batches(questions, max_batch_texts):
                for question, program in zip(batch, self._decode(batch), strict=True):
                    programs[question.row] = Program.parse(program)
                advance(len(batch))
        return programs

    def _prompt(self, words: Sequence[Token]) -> list[int]:
        prompt = encode_question(self._grammar.tokenizer, words)
        limit = getattr(self._model.config, "max_position_embeddings", None) or 10**9
        if len(prompt) + MAX_PROGRAM_TOKENS > limit:
            raise RedxError(
                f"The question has {len(prompt)} tokens, too many for this language model; ask a shorter one."
            )
        return prompt

    @torch.inference_mode()
    def _decode(self, questions: Sequence[Question]) -> list[str]:
        """Return the text of a well-formed program for every question."""
        prompts = [question.prompt for question in questions]
        width = max(map(len, prompts))
        end = self._grammar.end  # also pads the prompts on the left, where the mask excludes it
        ids = torch.tensor([[end] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        with quiet_transformers():
            generated = self._model.generate(
                input_ids=ids.to(self._model.device),
                attention_mask=mask.to(self._model.device),
                logits_processor=[Constraint(self._grammar, [question.start for question in questions])],
                max_new_tokens=MAX_PROGRAM_TOKENS,  # never reached, since a token has at least one character
                do_sample=False,
                eos_token_id=end,
                pad_token_id=end,
            )
        return [self._grammar.text(row) for row in generated[:, width:].tolist()]


def loss(model: Any, examples: Sequence[TrainingExample]) -> Tensor:
    """Return the mean cross-entropy of the tokens of the true programs.

    Parameters
    ----------
    model
        A causal language model.
    examples
        Questions with their programs.

    Returns
    -------
    Tensor
        A scalar. The end tokens count; questions and padding do not.
    """
    ids, mask, labels = (tensor.to(model.device) for tensor in stack_examples(examples))
    shortest = min(len(example.question) for example in examples)
    keep = ids.shape[1] - shortest + 1  # logits are not needed where every row is still in its question
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=keep).logits[:, -keep:-1]
    return F.cross_entropy(logits.flatten(0, 1), labels[:, 1 - keep :].flatten(), ignore_index=IGNORED_LABEL)


def stack_examples(examples: Sequence[TrainingExample]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tokens, the mask and the labels of a batch, (B, T) each, padded on the right.

    The mask depends on lengths and not on tokens: the end token may be the padding token, and must be learned.
    """
    width = max(len(question) + len(program) for question, program in examples)
    ids = torch.zeros(len(examples), width, dtype=torch.long)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, IGNORED_LABEL)
    for row, (question, program) in enumerate(examples):
        length = len(question) + len(program)
        ids[row, :length] = torch.tensor(question + program)
        mask[row, :length] = 1
        labels[row, len(question) : length] = torch.tensor(program)
    return ids, mask, labels


def draw_example(draw: random.Random, words: Language, grammar: Grammar) -> TrainingExample:
    """Draw a program, write it as a sentence, and return both as tokens."""
    program = sample(draw, draw.choice(STEP_COUNTS))
    text, _ = write(program, draw, words, draw.choice(STYLES))
    return TrainingExample(encode_question(grammar.tokenizer, tokens(text)), grammar.encode(program))


def encode_question(tokenizer: Any, words: Sequence[Token]) -> list[int]:
    """Return the tokens of the prompt: the words of a question with its numbers in digits, and no special tokens."""
    text = " ".join(word.text if word.value is None else str(word.value) for word in words)
    return tokenise(tokenizer, f"Question: {text}\n")


def load_causal_lm(backbone: str, device: str) -> tuple[Any, Grammar]:
    """Return a causal language model in float32, and the grammar of programs for its tokenizer."""
    _, model, tokenizer = load_causal_model(backbone)
    return model.eval().to(device), Grammar(tokenizer)


def _open_for_training(model: Any, last_blocks: int | None, rank: int) -> tuple[Any, dict[str, nn.Parameter]]:
    """Return the model with LoRA, or with its last blocks trainable, and the trainable parameters by name."""
    model.requires_grad_(False)
    if last_blocks is None:
        from peft import LoraConfig, get_peft_model

        names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
        targets = ATTENTION if names >= set(ATTENTION) else "all-linear"
        model = get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets))
    else:
        depth = model.config.num_hidden_layers
        lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
        blocks = next((module for module in lists if len(module) == depth), None)
        if blocks is None or not 1 <= last_blocks <= depth:
            raise RedxError(f"The last {last_blocks} blocks cannot be trained; choose 1 to {depth}, or LoRA.")
        blocks[depth - last_blocks :].requires_grad_(True)
    return model, {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _shapes(tensors: dict[str, Any]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _decoding_batches(questions: list[Question], max_texts: int) -> Iterator[list[Question]]:
    """Divide questions, sorted by length, into batches of bounded size."""
    start = 0
    while start < len(questions):
        stop = start + 1
        last = min(len(questions), start + max_texts)
        while stop < last and (stop + 1 - start) * len(questions[stop].prompt) <= MAX_BATCH_TOKENS:
            stop += 1
        yield questions[start:stop]
        start = stop


_UNREAD = RedxError("This text was not read.")  # takes the place of a program until it is decoded
