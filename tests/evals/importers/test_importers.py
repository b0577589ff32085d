"""Files of others read into frames: a log that Inspect wrote, logs of other versions, files that are
broken.
"""

import json
import math
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from kestrel_lab import Lab
from kestrel_lab.cli.main import main
from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.importers.inspect_logs import read_inspect
from kestrel_lab.evals.importers.load import ImportResult
from kestrel_lab.evals.summaries.result_table import COLUMNS

LOG = Path(__file__).parent / "data" / "inspect-small.eval"
"""Written by inspect-ai 0.3.285 with its mock model: three samples, two epochs, one sample that breaks, two
scorers.
"""
INSPECT_SAYS = [
    ("breaks", 1, {}, 0.609, 0.609, 0, 0, "RuntimeError('the solver broke')"),
    ("breaks", 2, {}, 0.018, 0.018, 0, 0, "RuntimeError('the solver broke')"),
    ("capital", 1, {"includes": 1.0, "match": 1.0}, 0.032, 0.032, 11, 3, ""),
    ("capital", 2, {"includes": 0.0, "match": 0.0}, 0.051, 0.051, 11, 3, ""),
    ("sum", 1, {"includes": 1.0, "match": 1.0}, 0.753, 0.752, 22, 6, ""),
    ("sum", 2, {"includes": 0.0, "match": 0.0}, 0.032, 0.032, 11, 3, ""),
]
"""What Inspect's own reader and its `value_to_float` say of the samples."""
INSPECT_ACCURACY = 0.5
"""The metric that Inspect wrote for both scorers."""


def head(**more: Any) -> dict[str, Any]:
    return {"version": 2, "status": "success", "eval": {"task": "old", "model": "openai/gpt-4o", **more}}


def sample(**more: Any) -> dict[str, Any]:
    return {"id": 1, "epoch": 1, "scores": {"match": {"value": "C"}}, **more}


def log(path: Path, parts: dict[str, Any], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, value in parts.items():
            file.writestr(name, value if isinstance(value, str) else json.dumps(value))
    return path


def test_agrees_with_inspect() -> None:
    """Scores, times, tokens and errors are those that Inspect's own reader gives, and the rate is its
    accuracy.
    """
    frame = read_inspect(LOG).sort_values(["scenario", "epoch"])
    assert list(frame.columns) == [*COLUMNS, "score.includes", "score.match"]
    found = [
        (
            row["scenario"],
            row["epoch"],
            {
                name: row[f"score.{name}"]
                for name in ("includes", "match")
                if not math.isnan(row[f"score.{name}"])
            },
            *(row[name] for name in ("wall_time", "working_time", "tokens_in", "tokens_out", "reason")),
        )
        for row in frame.to_dict(orient="records")
    ]
    assert found == INSPECT_SAYS
    assert frame.success.mean() == INSPECT_ACCURACY
    assert frame.outcome.tolist() == ["error", "error", "pass", "fail", "pass", "fail"]
    assert frame.tool_calls.tolist() == [0, 0, 0, 0, 1, 0]
    assert frame.model_calls.tolist() == [0, 0, 1, 1, 2, 1]
    assert set(frame.model_kind) == {"scripted"}
    assert set(frame.config) == {"mockllm/model"}


def imported(home: Path, *paths: Path) -> ImportResult:
    """What an import into a new log gives."""
    with Lab(home=home) as lab:
        found = lab.evals.import_runs_sync(*paths)
        found.summary()
        return found


def test_summary(tmp_path: Path) -> None:
    """The summary has the rate with its interval over trials that count, says how many broke with the rates if
    they had failed or passed, and that no real model answered.
    """
    (row,) = imported(tmp_path, LOG).summary().reset_index().to_dict(orient="records")
    assert row == {
        "configuration": "mockllm/model (scripted)",
        "success (95 %)": "50 % (9–91)",
        "trials": "6",
        "broke": "2 (rate 33–67 %)",
        "wall s": "0.25",
        "tokens": "12",
        "tool calls": "0.2",
        "cost per trial": "unknown",
    }


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_older_logs(tmp_path: Path, method: int) -> None:
    """A log with other compression and without times, usage, events and uuid is read; what it does not tell
    is missing.
    """
    said = [
        {"role": "user"},
        {"role": "assistant", "tool_calls": [{}, {}]},
        {"role": "tool"},
        {"role": "assistant"},
    ]
    path = log(
        tmp_path / "old.eval",
        {
            "header.json": head(
                model_generate_config={"temperature": 0.5, "seed": None},
                solver="react",
                revision={"commit": "abc"},
            ),
            "samples/1_epoch_1.json": {"id": 1, "epoch": 1, "score": {"value": 0.25}, "messages": said},
            "samples/1_epoch_2.json": sample(
                epoch=2, scores={"a": {"value": {"x": "C", "y": 0}}, "b": {"value": "words"}}
            ),
            "samples/1_epoch_3.json": sample(epoch=3, scores={}, limit={"type": "token", "limit": 5}),
            "samples/1_epoch_4.json": sample(epoch=4, limit={"type": "token", "limit": 5}),
        },
        method,
    )
    rows = read_inspect(path).to_dict(orient="records")
    assert [(row["outcome"], row["reason"]) for row in rows] == [
        ("fail", ""),
        ("pass", ""),
        ("error", "limit: token"),
        ("pass", "limit: token"),
    ]
    assert [row["score"] for row in rows[:2]] == [0.25, 1.0]
    assert (rows[1]["score.a.x"], rows[1]["score.a.y"]) == (1.0, 0.0)
    assert (rows[0]["model_calls"], rows[0]["tool_calls"], rows[0]["git_sha"]) == (2, 2, "abc")
    assert rows[0]["config"] == "openai/gpt-4o [solver=react, temperature=0.5]"
    assert math.isnan(rows[0]["wall_time"])
    assert math.isnan(rows[1]["score.b"])
    assert read_inspect(path, passes=0.25).outcome.tolist() == ["pass", "pass", "error", "pass"]


def test_unfinished_log_and_json(tmp_path: Path) -> None:
    """A log of a run that did not end is read as far as it goes, and one in JSON gives the same rows."""
    whole = {**head(), "samples": [sample()]}
    (tmp_path / "log.json").write_text(json.dumps(whole))
    zipped = log(tmp_path / "log.eval", {"_journal/start.json": head(), "samples/1_epoch_1.json": sample()})
    one, other = read_inspect(zipped), read_inspect(tmp_path / "log.json")
    assert one.equals(other)
    assert imported(tmp_path / "home", zipped, tmp_path / "log.json").frame.outcome.tolist() == [
        "pass"
    ]  # one sample in two forms


def test_cost_of_several_models(tmp_path: Path) -> None:
    """Costs that the log knows are added up; a model without one makes the calls unpriced."""
    usage = {
        "a": {"total_tokens": 10, "output_tokens": 4, "total_cost": 0.5},
        "b": {"total_tokens": 5, "output_tokens": 1, "total_cost": 0.25},
    }
    unknown = {**usage, "b": {"total_tokens": 5, "output_tokens": 1}}
    events = [{"event": "model"}, {"event": "model", "pending": True}]
    samples = [sample(model_usage=usage, events=events), sample(epoch=2, model_usage=unknown, events=events)]
    (tmp_path / "log.json").write_text(json.dumps({**head(), "samples": samples}))
    frame = read_inspect(tmp_path / "log.json")
    assert frame[["tokens_in", "tokens_out", "cost_estimate", "unpriced_calls"]].to_numpy().tolist() == [
        [10, 5, 0.75, 0],
        [10, 5, 0.5, 1],
    ]


def damaged(path: Path, kind: str) -> Path:
    content = bytearray(LOG.read_bytes())
    with zipfile.ZipFile(LOG) as file:
        entry = file.getinfo("samples/sum_epoch_1.json")
    if kind == "cut":
        del content[len(content) // 2 :]
    elif kind == "flipped":
        content[entry.header_offset + 30 + len(entry.filename) + 40] ^= 0xFF
    elif kind == "claims little":  # what is unpacked is more than the directory says
        place = content.rindex(entry.filename.encode()) - 46
        struct.pack_into("<I", content, place + 24, 10)
    elif kind == "claims much":
        place = content.rindex(entry.filename.encode()) - 46
        struct.pack_into("<I", content, place + 24, 0xFFFFFFF0)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("cut", "not a whole zip file"),
        ("flipped", "its part 'samples/sum_epoch_1.json' cannot be read"),
        ("claims little", "its part 'samples/sum_epoch_1.json' cannot be read: its checksum is wrong"),
        (
            "claims much",
            "its part 'samples/sum_epoch_1.json' cannot be read: it has 4,294,967,280 bytes, more than "
            "1,073,741,824",
        ),
    ],
)
def test_damaged_logs(tmp_path: Path, kind: str, problem: str) -> None:
    """A log that was cut off or changed is refused with the part that is broken, and nothing of it is
    believed.
    """
    with pytest.raises(UsageError) as raised:
        read_inspect(damaged(tmp_path / "log.eval", kind))
    assert problem in str(raised.value)


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    """An entry that unpacks to far more than it says is given up after what it says."""
    packed = zstandard.ZstdCompressor().compress(b" " * (1 << 28))
    path = log(
        tmp_path / "bomb.eval",
        {"header.json": head(), "samples/1_epoch_1.json": "x" * len(packed)},
        zipfile.ZIP_STORED,
    )
    content = path.read_bytes().replace(b"x" * len(packed), packed)
    for mark, place in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        start = content.rindex(mark)
        content = content[: start + place] + struct.pack("<H", 93) + content[start + place + 2 :]
    path.write_bytes(content)
    with pytest.raises(UsageError, match="its checksum is wrong"):
        read_inspect(path)


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        (
            {"other.json": {}},
            "a zip file, but no log of Inspect: it has neither header.json nor _journal/start.json",
        ),
        ({"header.json": {"eval": {"task": "t"}}}, "nothing under 'eval' names a task and a model"),
        ({"header.json": []}, "nothing under 'eval' names a task and a model"),
        ({"header.json": "{"}, "its part 'header.json' cannot be read"),
        ({"header.json": head()}, "it contains no samples"),
        ({"header.json": head(), "samples/1.json": []}, "samples/1.json is not a sample of an Inspect log"),
        (
            {"header.json": head(), "samples/1.json": {"id": 1}},
            "samples/1.json epoch: left out: it is missing, and counts as 1",
        ),
        (
            {"header.json": head(), "samples/1.json": sample(scores=3)},
            "samples/1.json is not a sample of an Inspect log",
        ),
        (
            {"header.json": head(), "samples/1.json": sample(model_usage=[1])},
            "samples/1.json is not a sample of an Inspect log",
        ),
    ],
)
def test_zip_files_that_are_no_logs(tmp_path: Path, parts: dict[str, Any], problem: str) -> None:
    """Whatever is in a zip file, what is not a log of Inspect is refused with the place and what is wrong
    there.
    """
    with pytest.raises(UsageError) as raised:
        read_inspect(log(tmp_path / "log.eval", parts))
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [("", "neither a zip file nor whole JSON"), ("[1]", "nothing under 'eval'"), ("{", "neither a zip file")],
)
def test_text_that_is_no_log(tmp_path: Path, text: str, problem: str) -> None:
    """The same for files that are no zip files."""
    (tmp_path / "log.json").write_text(text)
    with pytest.raises(UsageError, match=problem):
        read_inspect(tmp_path / "log.json")


def test_marks_that_are_no_shares(tmp_path: Path) -> None:
    """Routing data are read by the same command; marks from 1 to 10 are summarised as a mean, shares as a
    rate.
    """
    marks, shares = tmp_path / "marks.jsonl", tmp_path / "shares.jsonl"
    marks.write_text("\n".join(json.dumps({"prompt": str(n), "strong": 8 + n, "weak": 5}) for n in range(3)))
    shares.write_text("\n".join(json.dumps({"prompt": str(n), "strong": 1, "weak": n % 2}) for n in range(4)))
    assert imported(tmp_path / "home", marks).summary()["mean (95 %)"].to_dict() == {
        "strong": "9.00 (6.52–11.48)",
        "weak": "5.00 (5.00–5.00)",
    }
    assert imported(tmp_path / "home", shares).summary()["success (95 %)"].to_dict() == {
        "strong": "100 % (51–100)",
        "weak": "50 % (15–85)",
    }


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`kestrel eval import` prints the summary and writes the rows; a folder or a missing file is told."""
    with pytest.raises(SystemExit) as done:
        main(["eval", "import", str(LOG), "--csv", str(tmp_path / "out" / "rows.csv")])
    assert done.value.code == 0
    assert "50 % (9–91)" in capsys.readouterr().out
    assert len((tmp_path / "out" / "rows.csv").read_text().splitlines()) == 7
    for name, problem in (
        (tmp_path, "is a folder: name the files in it"),
        (tmp_path / "none.eval", "there is no file"),
    ):
        with pytest.raises(SystemExit) as failed:
            main(["eval", "import", str(name)])
        assert failed.value.code == 2
        assert problem in capsys.readouterr().err
