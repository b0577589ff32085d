"""Deterministic checks on true and made-up answers about installed packages and a small workspace."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.faithfulness_seeds import FAULTS, Facts, made_up, true_answers
from bench.heldout_answers import FALSE, LATER_FALSE, LATER_TRUE, TRUE, placed
from kestrel_lab.core.citations import Span
from kestrel_lab.verification.engine import CHECKS, VerifierEngine
from kestrel_lab.verification.issues import refused
from kestrel_lab.verification.rules.files_and_lines import files_exist
from kestrel_lab.verification.subject import Ground, Made, Subject

PACKAGES = ("pluggy", "h11", "stamina")


def root(package: str) -> Path:
    """Where an installed package is."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


@pytest.fixture(scope="module")
def grounds() -> dict[str, Ground]:
    """Packages as workspaces."""
    return {name: Ground(root(name)) for name in (*PACKAGES, "iniconfig", "tenacity", "click") if importlib.util.find_spec(name)}


def seeds(grounds: dict[str, Ground]) -> Iterator[tuple[str | None, str, Ground]]:
    """Sixty true answers and sixty with something made up, ten of each kind."""
    wanted = {"pluggy": (20, 4), "h11": (20, 3), "stamina": (20, 3)}
    for name, (true, false) in wanted.items():
        facts = Facts(grounds[name].root)
        yield from ((None, answer.text, grounds[name]) for answer in true_answers(facts, true))
        yield from ((fault, answer.text, grounds[name]) for fault in FAULTS for answer in made_up(facts, fault, false))


def test_made_up_answers_are_refused_and_true_ones_are_not(grounds: dict[str, Ground]) -> None:
    """Of sixty seeded hallucinations of six kinds none passes, and of sixty true answers at most two are refused."""
    engine, counted = VerifierEngine(), Counter[tuple[str | None, bool]]()
    names_only = VerifierEngine({**dict.fromkeys(CHECKS, ()), "files": (files_exist,)})
    passed_by_names = 0
    for fault, text, ground in seeds(grounds):
        subject = Subject(answer=text, ground=ground, calls=())
        counted[fault, refused(engine(subject))] += 1
        passed_by_names += fault is not None and not refused(names_only(subject))
    assert [counted[fault, True] for fault in FAULTS] == [10] * 6
    assert [counted[fault, False] for fault in FAULTS] == [0] * 6
    assert counted[None, False] + counted[None, True] == 60
    assert counted[None, True] <= 2
    assert passed_by_names >= 40, "the mutant that looks at names of files only lets the other kinds pass"


def test_answers_written_by_hand(grounds: dict[str, Ground]) -> None:
    """The sets that were held out until the checks were done are judged rightly since, but for a few."""
    engine = VerifierEngine()
    wrong: list[str] = []
    for package, text in (*TRUE, *LATER_TRUE):
        if package in grounds:
            wrong += [text] * refused(engine(Subject(answer=placed(text, grounds[package].root), ground=grounds[package])))
    for package, _, text in (*FALSE, *LATER_FALSE):
        if package in grounds:
            wrong += [text] * (not refused(engine(Subject(answer=placed(text, grounds[package].root), ground=grounds[package]))))
    assert wrong == []


@pytest.fixture
def shop(tmp_path: Path) -> Ground:
    """A small workspace."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "cart.py").write_text(
        '"""The cart."""\n\nLIMIT = 25\n\n\nclass Cart:\n    """Holds items."""\n\n    def add(self, item: str, times: int = 3) -> None:\n        """Put an item in."""\n'
        '        if times > LIMIT:\n            raise ValueError("too many items at once")\n        self.items = [item] * times\n'
    )
    (tmp_path / "README.md").write_text("# Shop\n\nRun `make serve`. See https://shop.test/docs for more.\n")
    (tmp_path / "Makefile").write_text("serve:\n\techo serving\n")
    return Ground(tmp_path)


@pytest.mark.parametrize(
    ("answer", "checks"),
    [
        ("`Cart.add` takes `times`, 3 by default (shop/cart.py:9).", set()),
        ("`Cart.remove` takes an item out.", {"names_resolve"}),
        ("`Cart.add` is defined at shop/cart.py:3.", {"lines_hold"}),
        ("See shop/cart.py:99.", {"lines_hold"}),
        ("See shop/basket.py.", {"files_exist"}),
        ("There is no shop/basket.py.", set()),
        ("shop/cart.py does not exist.", {"files_exist"}),
        ("Create a new file `shop/basket.py` for it.", set()),
        ("In `shop/cart.py`, `LIMIT` is 40.", {"values_hold"}),
        ('It raises "too many items in one go".', {"quotes_are_exact"}),
        ('It raises "too many items at once".', set()),
        ("Run `make serve`.", set()),
        ("Run `make deploy`.", {"commands_are_there"}),
        ("Run `shopctl --all`.", {"commands_are_there"}),
        ("```python\ndef f(:\n    pass\n```", {"blocks_parse"}),
        ("```bash\nif true; then\n```", {"blocks_parse"}),
        ('```json\n{"a": 1,}\n```', {"blocks_parse"}),
        ("```yaml\na: [1\n```", {"blocks_parse"}),
        ("```toml\na = \n```", {"blocks_parse"}),
        ('{"a": 1, "b": }', {"json_is_valid"}),
        ("See https://shop.test/docs.", set()),
        ("According to https://shop.test/other it is so.", {"addresses_were_met"}),
        ("It is open to CVE-2031-12345.", {"advisories_were_met"}),
        ("I ran `pytest -q`, and all is well.", {"deeds_were_done"}),
        ("I ran `ls shop`, and saw cart.py.", set()),
        ("The measured height is 7 m.", set()),
        ("The measured height is 8 m.", {"numbers_are_there"}),
        ("It is so [main.1.1].", set()),
        ("It is so [main.7.1].", {"lines_hold"}),
    ],
)
def test_each_kind_of_output_has_its_check(shop: Ground, answer: str, checks: set[str]) -> None:
    """What is wrong is found by the check of its kind, and nothing else refuses the answer; what is right passes."""
    calls = (Made(call="main.1.1", tool="shell", args={"command": "ls shop"}, ok=True),)
    spans = (
        Span(
            id="main.1.1",
            source="shell",
            text="cart.py\nmeasured height: 7 m\nhttps://shop.test/seen",
            call="main.1.1",
            page="https://shop.test/seen",
        ),
    )
    found = VerifierEngine()(Subject(answer=answer, goal="g", spans=spans, calls=calls, ground=shop))
    assert {one.check for one in found if one.refuses} == checks


def test_an_issue_says_where_what_and_how(shop: Ground) -> None:
    """An issue names severity, place, what is wrong and a fix, and terminal signs in an answer stay harmless."""
    found = VerifierEngine()(Subject(answer="First this.\nSee shop/carts.py\x1b[31m.", ground=shop))
    assert [(one.severity, one.place, one.what, one.fix, one.check) for one in found] == [
        (
            "critical",
            "See shop/carts.py.",
            "the file shop/carts.py does not exist",
            "name a file that exists, such as shop/cart.py",
            "files_exist",
        )
    ]


def test_nothing_outside_of_the_workspace_is_read(tmp_path: Path) -> None:
    """A link that leads out of the workspace is not followed, and its text supports no quote."""
    (tmp_path / "secret.txt").write_text("the secret word is swordfish indeed\n")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "link.txt").symlink_to(tmp_path / "secret.txt")
    ground = Ground(tmp_path / "work")
    assert ground.files.read("link.txt") is None
    found = VerifierEngine()(Subject(answer='link.txt says "the secret word is swordfish indeed".', ground=ground))
    assert refused(found)


def test_what_cannot_be_seen_refuses_nothing(shop: Ground) -> None:
    """Where a part of the workspace could not be looked into, absence shows nothing."""
    shop.files.whole = False
    subject = Subject(answer="See shop/basket.py and `Basket_of_all()`; run `shopctl --all`.", ground=shop)
    assert not refused(VerifierEngine()(subject))
    assert not refused(VerifierEngine()(replace(subject, ground=None)))
    assert not refused(VerifierEngine()(replace(subject, answer="It is `Basket_of_all()`.", ground=Ground(shop.root, seconds=-1.0))))
