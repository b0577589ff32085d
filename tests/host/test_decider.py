"""Who decided, in words."""

from kestrel_lab.host.user import decider, user_name


def test_the_name_of_the_own_account_is_the_user() -> None:
    """A model is not told that root denied its call; another person and a rule keep their names."""
    assert [decider(name) for name in (user_name(), "ann", "rule 3")] == ["the user", "ann", "rule 3"]
