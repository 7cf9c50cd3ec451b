"""Bodies of requests in OpenAI's protocol: what is read, what is ignored, and what is refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from redx.endpoint.errors import ApiError
from redx.serve.bodies import read_json_body
from redx.serve.guard import Refused

MAX_STOPS, MAX_PROMPTS, MAX_MESSAGES = 16, 64, 1_000
IGNORED = ("metadata", "safety_identifier", "service_tier", "store", "user")  # they do not change an answer
NEUTRAL: dict[str, tuple[Any, ...]] = {  # what is refused unless it has one of these values
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "parallel_tool_calls": (True, False),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
}
Text = Annotated[str, Field(max_length=2**22)]
Stop = Annotated[str, Field(min_length=1, max_length=1_000)]
Body = TypeVar("Body", bound=BaseModel)


class Part(BaseModel):
    """A part of the content of a message."""

    type: Literal["text"]
    text: Text


class Message(BaseModel):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[Part]

    @property
    def plain(self) -> dict[str, str]:
        """The message as a chat template reads it."""
        parts = self.content
        content = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        return {"role": "system" if self.role == "developer" else self.role, "content": content}


class StreamOptions(BaseModel):
    """What a stream tells beside its text."""

    include_usage: bool = False


class Own(BaseModel):
    """What redx reads beyond OpenAI's protocol: the field `redx` of a request."""

    model_config = ConfigDict(extra="forbid")
    weights: dict[str, float] | None = Field(default=None, max_length=10_000)
    top: int | None = Field(default=None, ge=1)


class CommonBody(BaseModel):
    """What both kinds of request have in common."""

    model_config = ConfigDict(extra="allow")
    model: str = Field(max_length=1_000)
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=0.0, ge=0, le=2, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0, le=1, allow_inf_nan=False)
    n: int = Field(default=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63 - MAX_PROMPTS)
    stop: Annotated[list[Stop], Field(max_length=MAX_STOPS)] = []
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    redx: Own = Own()

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, value: Any) -> Any:
        """Leave out what is null: it means the default."""
        if not isinstance(value, dict):
            return value
        return {name: field for name, field in value.items() if field is not None}

    @field_validator("stop", mode="before")
    @classmethod
    def _in_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _refuse_more(self) -> Self:
        if self.n != 1:
            raise ApiError(400, "One answer a request is given; leave n out, or send several requests.", "n")
        for name, value in (self.model_extra or {}).items():
            if name not in IGNORED and not any(value == neutral for neutral in NEUTRAL.get(name, ())):
                raise ApiError(400, f"This server does not do {name[:60]!r}; leave it out.", name[:60])
        return self


class CompletionBody(CommonBody):
    """A request to /v1/completions."""

    prompt: Annotated[list[Text], Field(min_length=1, max_length=MAX_PROMPTS)]
    logprobs: int | None = Field(default=None, ge=0, le=20)

    @field_validator("prompt", mode="before")
    @classmethod
    def _in_a_list_too(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


class ChatBody(CommonBody):
    """A request to /v1/chat/completions."""

    messages: Annotated[list[Message], Field(max_length=MAX_MESSAGES)]
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=20)

    @model_validator(mode="after")
    def _has_messages(self) -> Self:
        check_messages(self.messages)
        return self


class RouteBody(BaseModel):
    """A request to /route: a prompt, or messages."""

    model_config = ConfigDict(extra="forbid")
    prompt: Text | None = None
    messages: Annotated[list[Message], Field(max_length=MAX_MESSAGES)] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ApiError(400, "Send a prompt, or messages.", "prompt")
        if self.messages is not None:
            check_messages(self.messages)
        return self


def check_messages(messages: list[Message]) -> None:
    """Refuse a chat without a message that says something."""
    if not any(message.plain["content"].strip() for message in messages):
        raise ApiError(400, "The messages are empty; send one with a content.", "messages")


async def read_json(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request."""
    try:
        value = await read_json_body(request)
    except Refused as refused:  # OpenAI answers all bad bodies with 400
        raise ApiError(415 if refused.status == 415 else 400, refused.sentence) from refused
    if not isinstance(value, dict):
        raise ApiError(400, "The body is no JSON object; send one with a model and a prompt.")
    return value


async def read(request: Request, schema: type[Body]) -> Body:
    """Return the body of a request as an instance of a schema."""
    return parse(await read_json(request), schema)


def parse(value: dict[str, Any], schema: type[Body]) -> Body:
    """Return plain JSON as an instance of a schema; every fault is a sentence."""
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        first: Any = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ApiError(400, f"{where or 'The request'}: {first['msg']}."[:300], where or None) from error
