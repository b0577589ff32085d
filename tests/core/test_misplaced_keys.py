"""A key at the wrong level of a file is told where it belongs."""

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from kestrel_lab.core.yaml.validation import explain_all


class Inner(BaseModel):
    """One of several."""

    model_config = ConfigDict(extra="forbid")
    inputs: str = ""


class Outer(BaseModel):
    """A file."""

    model_config = ConfigDict(extra="forbid")
    instructions: str = ""
    configs: list[Inner] = []


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("instructions", "'instructions' is a key of the file itself: write it there, beside 'configs'"),
        ("input", "did you mean 'inputs'?"),
    ],
)
def test_a_key_of_a_mapping_further_out_is_not_guessed_anew(key: str, hint: str) -> None:
    """What exists one level up is no misspelling of something here."""
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({"configs": [{key: "x"}]})
    assert [*explain_all(Outer, caught.value)] == [f"configs[0].{key}: unknown key; {hint}"]
