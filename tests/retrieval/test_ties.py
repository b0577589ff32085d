"""A change is rarely of one file alone: what changes with the best file, is imported by it or stands beside
it comes before its twin.
"""

import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bench.retrieval import Counts
from kestrel_lab.retrieval.explain import explain_rank
from kestrel_lab.retrieval.indexing import git_history as history
from kestrel_lab.retrieval.indexing.index import CodeIndex
from kestrel_lab.retrieval.ranking import Weights, file_ties, is_peripheral
from kestrel_lab.retrieval.search import Search

QUESTION = "the turbine controller starts the rotor too early"
LEADER = "plant/controller.py"
TWIN = '"""The rotor."""\n\n\ndef spin_{}(speed):\n    return speed\n'
PAIRS = {
    "together": ("gear/a.py", "gear/z.py"),
    "imported": ("wheel/a.py", "wheel/z.py"),
    "folder": ("other/rotor_a.py", "plant/rotor_a.py"),
}
"""For each kind of tie two files of the same words; only the second is tied to the leader by it."""
ALONE = Weights(together=0.0, imported=0.0, folder=0.0)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodeIndex]:
    """A repository in which `gear/z.py` was only ever changed together with the leader, and its twin as often
    alone.
    """
    folder = tmp_path_factory.mktemp("ties") / "work"
    files = {path: TWIN.format(kind) for kind, pair in PAIRS.items() for path in pair}
    files[LEADER] = (
        "from wheel.z import spin_imported\n\n\nclass TurbineController:\n    def start(self, "
        "rotor):\n        return spin_imported(rotor)\n"
    )
    files |= {f"far/f{number}.py": f"def nothing_{number}():\n    pass\n" for number in range(8)}
    files |= {"wheel/__init__.py": "", "plant/__init__.py": ""}
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "All"], check=True)
    alone, tied = PAIRS["together"]
    for number, paths in enumerate([(LEADER, tied), (alone,)] * 3):
        for path in paths:
            with (folder / path).open("a") as file:
                file.write(f"# {number // 2}\n")
        subprocess.run([*git, "commit", "-qam", f"Step {number}"], check=True)
    made = CodeIndex(folder, folder.parent / "home")
    made.refresh()
    yield made
    made.close()


@pytest.mark.parametrize("kind", PAIRS)
def test_a_tie_decides_between_files_of_the_same_words(index: CodeIndex, kind: str) -> None:
    """Of two files with the same words that which is tied to the best comes first, and its parts say by what;
    without that tie it is last of the two.
    """
    alone, tied = PAIRS[kind]
    ranking = Search(index, replace(ALONE, lately=0.0, **{kind: getattr(Weights(), kind)})).ranking(QUESTION)
    before = Search(index, replace(ALONE, lately=0.0)).ranking(QUESTION)
    parts = ranking.files[ranking.places[tied] - 1].parts
    assert ranking.places[LEADER] == 1
    assert ranking.places[tied] < ranking.places[alone]
    assert before.places[tied] > before.places[alone]
    assert parts[kind] > 0


def test_nothing_overtakes_the_first_for_being_tied_to_it(index: CodeIndex) -> None:
    """However much ties count, the file that is first by itself stays first."""
    heavy = replace(Weights(), together=50.0, imported=50.0, folder=50.0)
    assert Search(index, heavy).ranking(QUESTION).files[0].path == LEADER
    assert Search(index, ALONE).ranking(QUESTION).files[0].path == LEADER


def test_what_is_said_of_a_place_adds_up(index: CodeIndex) -> None:
    """The explanation of a place names the ties, and the score is the sum of the weighed parts."""
    tied = PAIRS["together"][1]
    one = next(one for one in Search(index).ranking(QUESTION).files if one.path == tied)
    total = sum(getattr(Weights(), name) * part for name, part in one.parts.items()) * one.factor
    assert one.score == pytest.approx(total)
    assert "changes together with the best" in explain_rank(index, QUESTION, tied).reason


def test_a_share_is_of_the_file_that_follows(index: CodeIndex) -> None:
    """Three of a file's commits with the leader and one sweep count nearly in full, its twin's only the
    sweep, and a file without commits nothing.
    """
    alone, tied = PAIRS["together"]
    with index.reading() as connection:
        shares = history.co_change_shares(connection, [LEADER], [alone, tied, "none.py"])[LEADER]
        found = file_ties(connection, {LEADER: 1.0}, [LEADER, alone, tied])
    assert 0.4 < shares[tied] < 1
    assert shares[alone] < 0.1
    assert "none.py" not in shares
    assert found["together"][LEADER] == 1


def test_code_about_locales_is_code() -> None:
    """A module called `locale` is not a translation; what lies in a language's folder below it is."""
    assert not is_peripheral("app/locale/__init__.py", "python")
    assert is_peripheral("app/locale/de/LC_MESSAGES/app.js", "javascript")


def test_a_share_of_few_issues_is_told_with_its_interval() -> None:
    """Four of fourteen are 28.6 %, and may be anything from 12 to 55 %; no issue gives no interval."""
    counts = Counts()
    for number in range(14):
        counts.add(["a", "b"], ["a", "b"] if number < 4 else ["c"])
    assert counts.row()[-1] == "11.7–54.6"
    assert counts.row()[0] == "14"
    assert Counts().row()[-1] == ""
