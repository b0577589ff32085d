"""Labels go out as CSV and come in again exactly; what is not in order changes nothing."""

import csv
import io

import pytest
from greetings import RUBRIC

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import TrialLabelled
from kestrel_lab.evals.labels.label_csv import COLUMNS, import_labels, labels_csv
from kestrel_lab.evals.labels.stored_labels import record_label, stored_labels, undo_label


def said(value, who="ada", **more):
    """A label of the suite."""
    given = {
        "suite": "demo",
        "rubric": RUBRIC,
        "rubric_hash": "",
        "probability": 1 / 3,
        "drawn": 4,
        "seed": 7,
    }
    return TrialLabelled(**{**given, "who": who, "value": value, **more})


def test_out_and_in_is_exact(lab, runs, tmp_path):
    """Notes with quotes, line breaks and formulas, skips, repeats, thirds and times are the same after labels
    were undone and read again.
    """
    given = [
        (runs[0], said(1, note='=1+1, "so"\r\nüber 日本')),
        (runs[1], said(None, "bob", note="one\r=two", seed=-7)),
        (runs[0], said(0, repeat=True)),
        (runs[2], said(0, rubric="another,\nrubric")),
        *((runs[4], said(0, f"person {mark}", note=f"{mark}1", rubric=f"- {mark}x")) for mark in "=+-@'"),
    ]
    labels = [record_label(lab.store, run, one) for run, one in given]
    text = labels_csv(lab.store, "demo")
    (tmp_path / "labels.csv").write_text(text, newline="")
    assert import_labels(lab.store, "demo", tmp_path / "labels.csv", runs) == (0, len(labels))
    for label in labels:
        undo_label(lab.store, label, label.said.who)
    assert stored_labels(lab.store, "demo") == []
    assert import_labels(lab.store, "demo", tmp_path / "labels.csv", runs) == (len(labels), 0)
    formulas = {
        cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row if cell[:1] in [*"=+-@"]
    }
    assert formulas == {"-7"}, text
    assert labels_csv(lab.store, "demo") == text
    assert [(x.run, x.at, x.said) for x in stored_labels(lab.store, "demo")] == [
        (x.run, x.at, x.said) for x in labels
    ]


def rows_of(*rows):
    """A CSV text of rows that lack nothing."""
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, COLUMNS)
    table.writeheader()
    for row in rows:
        table.writerow({"who": "ada", "value": "1", "rubric": RUBRIC, **row})
    return text.getvalue()


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([{"run": 0}, {"run": "gone"}], "row 3: there is no trial of suite demo with run 'gone'"),
        ([{"run": 0}, {"run": 1}, {"run": 0}], "row 4 is the same as row 2"),
        ([{"run": 0}, {"run": 0, "value": "0"}], "row 3 contradicts row 2"),
        (
            [{"run": 1}, {"run": 5, "value": "0"}],
            "row 3 contradicts a label that is stored: ada said 1 of run",
        ),
        ([{"run": 0, "value": "yes"}], "row 2: value is 1, 0 or skip, not 'yes'"),
        ([{"run": 0, "probability": "0"}], "row 2: the probability of a draw is above 0"),
        ([{"run": 0, "probability": "much"}], "row 2: could not convert"),
        ([{"run": 0, "rubric_hash": "abc"}], "row 2: the hash abc is not that of the rubric"),
        ([{"run": 0, "who": ""}], "row 2: a label needs the name"),
        ([{"run": 0, "probability": "nan"}], "row 2: the probability of a draw is above 0"),
        ([{"run": 0, "at": "1e400"}], "row 2: at is a time in seconds since 1970"),
        ([{"run": 0, "drawn": "9" * 5000}], "row 2: "),
        ([{"run": "=cmd|' /C calc'!A0"}], "row 2: there is no trial"),
        ([], "has no labels"),
    ],
)
def test_a_file_that_is_not_in_order_is_refused_whole(lab, runs, tmp_path, rows, told):
    """The rows are named, and nothing is written, not even of rows that are in order."""
    record_label(lab.store, runs[5], said(1))
    before = labels_csv(lab.store, "demo")
    named = [{**row, "run": runs[row["run"]] if isinstance(row["run"], int) else row["run"]} for row in rows]
    path = tmp_path / "labels.csv"
    path.write_text(rows_of(*named), newline="")
    with pytest.raises(UsageError, match=told):
        import_labels(lab.store, "demo", path, runs)
    assert labels_csv(lab.store, "demo") == before


def test_a_file_from_a_spreadsheet_on_windows_is_read(lab, runs, tmp_path):
    """With a byte order mark and its line ends; and a row that is short of cells is named."""
    content = b"\xef\xbb\xbf" + rows_of({"run": runs[0]}, {"run": runs[1]}).encode()
    assert b"\r\n" in content
    (tmp_path / "x.csv").write_bytes(content)
    assert import_labels(lab.store, "demo", tmp_path / "x.csv", runs) == (2, 0)
    (tmp_path / "x.csv").write_bytes(content + runs[2].encode() + b",ada\r\n")
    with pytest.raises(UsageError, match="row 4: it has more or fewer cells"):
        import_labels(lab.store, "demo", tmp_path / "x.csv", runs)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"run,who\nx,y\n", b'run,who,value,rubric\n"x'])
def test_what_is_no_csv_of_labels_is_named(lab, runs, tmp_path, content):
    """Bytes, other columns and a broken quotation are told with the file."""
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(UsageError, match=r"x\.csv"):
        import_labels(lab.store, "demo", tmp_path / "x.csv", runs)


def test_labels_of_another_suite_are_named(lab, runs):
    """Whoever asks for the wrong suite is told which ones have labels."""
    record_label(lab.store, runs[0], said(1))
    with pytest.raises(UsageError, match=r"suite 'gone' are labelled; there are labels of demo \(1\)"):
        labels_csv(lab.store, "gone")
