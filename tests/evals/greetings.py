"""A suite for tests of labels."""

from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.evals.suite import Config, Scenario, Suite

RUBRIC = "The answer says hello to the person by name."


def suite(number: int = 4, name: str = "demo") -> Suite:
    """A suite of so many scenarios, one configuration."""
    scenarios = tuple(
        Scenario(id=f"s{n}", goal=f"Greet person {n}", checks=(AnswerContains(texts=("hello",)),))
        for n in range(number)
    )
    return Suite(name=name, scenarios=scenarios, configs=(Config(name="c"),))
