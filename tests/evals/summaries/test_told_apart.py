"""What a run of a suite tells beside its rates: families apart, and which scenarios failed and why."""

import re

from made_rows import row

from kestrel_lab.evals.summaries.breakdowns import failed_table, family_table


def test_families_are_told_apart_where_there_are_several():
    """A row per family and a column per configuration, with intervals and a dash for what was not tried;
    nothing for one family.
    """
    rows = [
        row("a", "pass", family="find"),
        row("b", "fail", family="read"),
        row("b", "pass", family="read", config="d"),
    ]
    headings, cells = family_table(rows, "fail")
    assert headings == ["family", "(95 %)", "c (scripted)", "d (scripted)"]
    assert cells == [
        ["find", "passed", "100 % (21–100)", "–"],
        ["read", "passed", "0 % (0–79)", "100 % (21–100)"],
    ]
    assert family_table(rows[:1], "fail") == ([], [])


def test_what_bounds_are_set_for_is_told_for_all_and_by_family():
    """A row for each metric that is asked for, with its interval; for one family those of all; what is not a
    metric is left out.
    """
    rows = [
        row(f"s{n}", "pass", family=family, cycles=2.0 + n) for family in ("find", "read") for n in range(2)
    ]
    headings, cells = family_table(rows[:2], "fail", ["cycles", "cycles", "success_rate"])
    assert (headings, [cell[:2] for cell in cells]) == (
        ["family", "(95 %)", "c (scripted)"],
        [["all", "passed"], ["", "cycles"]],
    )
    assert re.fullmatch(r"2\.5 \([\d.-]+–[\d.]+\)", cells[1][2])


def test_recall_is_told_beside_the_rate():
    """Where checks measure it each family has a row for each k, the largest first."""
    found = row("a", "pass", family="find")
    found.result["scores"] = [
        {"check": f"recall@{k}: x", "passed": True, "value": value, "reason": ""}
        for k, value in ((5, 0.5), (10, 1.0))
    ]
    _, cells = family_table([found, row("b", "fail", family="read")], "fail")
    assert [cell[:2] for cell in cells[:3]] == [["find", "passed"], ["", "recall@10"], ["", "recall@5"]]
    assert [cell[2].split(" (")[0] for cell in cells[:3]] == ["100 %", "100 %", "50 %"]


def test_failures_are_told_with_reasons_the_best_configuration_first():
    """What the best configuration failed comes before what others failed alone; of many the rest is counted;
    what broke is told elsewhere.
    """
    rows = [row(f"s{n}", "pass", config="best") for n in range(9)] + [
        row("hard", "fail", config="best", reason="too hard")
    ]
    rows += [row(f"s{n}", "fail", config="worst", reason="slept") for n in range(9)] + [
        row("hard", "fail", config="worst", reason="slept")
    ]
    rows += [row("broken", "error", config="best", reason="no disk")]
    cells = failed_table(rows)
    assert cells[0] == ["hard", "best, worst", "too hard"]
    assert cells[1] == ["s0", "worst", "slept"]
    assert cells[-1][0] == "and 2 more"
    assert not any("broken" in cell[0] for cell in cells)


def test_failures_say_what_was_expected_and_found_and_how_often():
    """The check that failed in words, and of a scenario tried several times how often it passed."""
    failed = {"check": "answer equals '4'", "passed": False, "value": 0.0, "reason": "answered '5'"}
    rows = [row("sum", "fail" if epoch == 2 else "pass", epoch=epoch) for epoch in (1, 2, 3)]
    rows[1].result["scores"] = [failed]
    assert failed_table(rows) == [["sum", "c (2 of 3)", "expected: answer equals '4'; found: answered '5'"]]
