"""Identifiers of banks, and settings that refuse unknown names, NaN and changes."""

import pytest
from pydantic import TypeAdapter, ValidationError

from redx.schema import BankId, BankKey, StrictConfig


@pytest.mark.parametrize("text", ["residual/plain", "standalone/anchored-2", "pooled/mlp", "averaged/linear"])
def test_a_bank_is_written_and_parsed(text: str) -> None:
    assert str(BankId.parse(text)) == text
    assert BankId.parse(text).corrects_base == text.startswith("residual")


@pytest.mark.parametrize("text", ["", "residual", "residual/", "other/plain", "residual/Plain", "residual/a/b"])
def test_other_texts_are_no_banks(text: str) -> None:
    with pytest.raises(ValueError, match="FORM/NAME"):
        BankId.parse(text)


def test_banks_are_texts_in_json() -> None:
    adapter = TypeAdapter(dict[BankKey, int])
    banks = adapter.validate_json('{"residual/plain": 1}')
    assert banks == {BankId("residual", "plain"): 1}
    assert adapter.dump_json(banks) == b'{"residual/plain":1}'


class Settings(StrictConfig):
    """Settings of one number."""

    rate: float = 1.0


@pytest.mark.parametrize("values", [{"rat": 1.0}, {"rate": float("nan")}, {"rate": float("inf")}, {"rate": "x"}])
def test_settings_refuse_what_they_do_not_know(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate(values)


def test_settings_do_not_change() -> None:
    settings = Settings()
    with pytest.raises(ValidationError, match="frozen"):
        settings.rate = 2.0  # type: ignore[misc]
