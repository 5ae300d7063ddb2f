"""What pydantic says of a field reads like our own refusals."""

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tilewright.service.operations.validation_words import plain


class Budget(BaseModel):
    model_config = ConfigDict(extra="forbid")

    trials: int = Field(gt=0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"trials": 0}, "must be greater than 0"),
        ({"trials": "x"}, "must be a valid integer"),
        ({}, "is missing"),
        ({"trials": 1, "colour": 1}, "is not a known field"),
    ],
)
def test_a_refusal_is_a_predicate_of_the_field(given, said):
    with pytest.raises(ValidationError) as refused:
        Budget.model_validate(given)
    (error,) = refused.value.errors()
    assert plain(error["msg"]) == said
