"""Files, lines and calls that an answer names, held against the workspace and the log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kestrel_lab.verification import places
from kestrel_lab.verification.answered_calls import AnsweredCall
from kestrel_lab.verification.engine import check_answer
from kestrel_lab.verification.subject import Subject
from kestrel_lab.verification.workspace_files import Files

CART = '''"""The cart."""

LIMIT = 25


class Cart:
    """Holds items."""

    def add(self, item: str, times: int = 3) -> None:
        """Put an item in."""
        if times > LIMIT:
            raise ValueError("too many items at once")
        self.items = [item] * times


{gap}def checkout(cart: Cart) -> int:
    """Close the cart and count what is in it."""
    return len(cart.items)
'''.replace("{gap}", "# a line of the gap\n" * 20)


@pytest.fixture
def shop(tmp_path: Path) -> Files:
    """A small workspace with two files of one name."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "lib" / "shop").mkdir(parents=True)
    (tmp_path / "shop" / "cart.py").write_text(CART)
    (tmp_path / "shop" / "util.py").write_text("def one() -> int:\n    return 1\n")
    (tmp_path / "lib" / "shop" / "util.py").write_text("x = 1\n" * 30)
    (tmp_path / "CHANGES.md").write_text("- Dropped shop/basket.py, which nobody used.\n")
    return Files(tmp_path)


def checks(subject: Subject) -> set[str]:
    """The checks that accuse an answer."""
    return {one.check for one in check_answer(subject)}


@pytest.mark.parametrize(
    ("answer", "accused"),
    [
        ("The cart is in `shop/cart.py`.", ""),
        ("See shop/basket.py.", "files_exist"),
        ("Files like `shop/basket.py` hold it.", "files_exist"),
        ("In your project `shop/basket.py` holds it.", "files_exist"),
        ("It should be in `shop/basket.py`, line 12.", "files_exist"),
        ("It is in SHOP/CART.PY.", "files_exist"),
        ("It is in `shop/carts`.", "files_exist"),
        ("It is in `shop/carts/`.", "files_exist"),
        ("See basket.py:4.", "files_exist"),
        ("It closes the cart [shop/basket.py:4].", "files_exist"),
        ("It is named after its page: `shop/[page].py`.", ""),
        ("There is no shop/basket.py.", ""),
        ("`shop/basket.py` was removed.", ""),
        ("Create a new file `shop/basket.py` for it.", ""),
        ("You would add `shop/basket.py` for it.", ""),
        ("In a project of your own, say in `myapp/settings.py`, import it.", ""),
        ("It sends `text/html` and/or `a/b`.", ""),
        ("All of `shop/*.py` is typed.", ""),
        ("See https://shop.test/shop/basket.py for more.", ""),
        ("```python\nopen('shop/basket.py')\n```", ""),
        ("`Cart.add` is at shop/cart.py:9.", ""),
        ("`Cart.add` is at shop/cart.py:6-13.", ""),
        ("`Cart.add` (shop/cart.py:36) puts items in.", "citations_resolve"),
        ("`checkout` (shop/cart.py:3) closes it.", "citations_resolve"),
        ("`checkout` calls `len` (shop/cart.py:38).", ""),
        ("See shop/cart.py:99.", "citations_resolve"),
        ("See shop/cart.py, lines 90-95.", "citations_resolve"),
        ('It says "Close the cart and count what is in it" (shop/cart.py:37).', ""),
        ('It says "Close the cart and count what is in it" (shop/cart.py:4).', "citations_resolve"),
        ("It returns 1 (util.py:2).", ""),
        ("It is set in util.py:30.", ""),
        ("It is set in util.py:31.", "citations_resolve"),
        ("It is set in shop/util.py:30.", "citations_resolve"),
        ("It is so [main.1.1].", ""),
        ("It is so [main.7.1].", "citations_resolve"),
        ("Values 3, 7 and 8 of 1,200 rows: 60 × 3 = 180.", ""),
    ],
)
def test_a_place_is_right_or_accused(shop: Files, answer: str, accused: str) -> None:
    """A place that does not exist is accused however the sentence puts it; what is proposed, denied or
    another's is not.
    """
    calls = (AnsweredCall(call="main.1.1", tool="bash", args={"command": "ls"}, ok=True, text="util.py"),)
    assert checks(Subject(answer=answer, calls=calls, ground=shop)) == ({accused} if accused else set())


@pytest.mark.parametrize(("name", "accused"), [("shop/cart.py", False), ("shop/basket.py", True)])
def test_absolute_paths_are_treated_like_relative_ones(shop: Files, name: str, *, accused: bool) -> None:
    """A path from the root of the disk is looked up in the workspace, or in the folder that it names."""
    assert (
        any(one.refuses for one in check_answer(Subject(answer=f"See {shop.root}/{name}.", ground=shop)))
        is accused
    )
    assert not any(
        one.refuses for one in check_answer(Subject(answer="It serves /static/style.css.", ground=shop))
    )


def test_what_the_run_itself_touched_is_not_missing(shop: Files) -> None:
    """A file that the goal names or that a call was made with may be gone since."""
    subject = Subject(answer="See shop/basket.py.", ground=shop, calls=())
    assert checks(subject) == {"files_exist"}
    assert checks(replace(subject, goal="Delete shop/basket.py.")) == set()
    made = AnsweredCall(
        call="main.1.1", tool="delete_file", args={"path": "shop/basket.py"}, ok=True, text="deleted"
    )
    assert checks(replace(subject, calls=(made,))) == set()


def test_a_file_is_read_as_it_is_now(shop: Files) -> None:
    """After an edit a citation is judged by the file as it is."""
    subject = Subject(answer="`newest` is at shop/util.py:4.", ground=shop, calls=())
    assert checks(subject) == {"citations_resolve"}
    (shop.root / "shop" / "util.py").write_text(
        "def one() -> int:\n    return 1\n\ndef newest() -> int:\n    return 2\n"
    )
    assert checks(replace(subject, ground=Files(shop.root))) == set()


def test_an_issue_says_where_what_and_how(shop: Files) -> None:
    """An issue names severity, place, what is wrong and a fix, and terminal signs in an answer stay
    harmless.
    """
    found = check_answer(Subject(answer="First this.\nSee shop/carts.py\x1b[31m.", ground=shop))
    assert [(one.severity, one.place, one.what, one.fix, one.check) for one in found] == [
        (
            "critical",
            "See shop/carts.py.",
            "shop/carts.py does not exist",
            "name a file that exists, such as shop/cart.py",
            "files_exist",
        )
    ]


def test_nothing_outside_of_the_workspace_is_read(tmp_path: Path) -> None:
    """A link that leads out of the workspace is not followed: its lines are not there."""
    (tmp_path / "secret.txt").write_text("the secret word is swordfish indeed\n")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "link.txt").symlink_to(tmp_path / "secret.txt")
    assert Files(tmp_path / "work").read("link.txt") is None


def test_what_cannot_be_seen_refuses_nothing(shop: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not every file could be listed, or there is no workspace, absence shows nothing; a large file
    changes nothing.
    """
    subject = Subject(answer="See shop/basket.py.", ground=shop)
    (shop.root / "logo.svg").write_bytes(b"x" * 5_000_000)
    assert checks(replace(subject, ground=Files(shop.root))) == {"files_exist"}
    assert checks(replace(subject, ground=None)) == set()
    monkeypatch.setattr("kestrel_lab.verification.workspace_files.MAX_FILES", 2)
    assert checks(replace(subject, ground=Files(shop.root))) == set()


def test_a_check_that_believes_mentions_is_caught(shop: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant for which a mention in some file makes a file exist lets a made-up place pass."""
    monkeypatch.setattr(
        places,
        "_is_explained",
        lambda subject, _, path, __: path in (subject.files.read("CHANGES.md") or ""),
    )
    assert checks(Subject(answer="See shop/basket.py.", ground=shop)) == set()
