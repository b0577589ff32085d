"""Agreement is what the books say, with an interval, and says nothing where nothing can be said."""

import math

import pytest

from kestrel_lab.evals.labels.agreement import cohen_kappa, krippendorff_alpha, raw_agreement


def units(*columns):
    """Ratings of a table whose rows are raters; a dot is a gap."""
    return {
        f"u{n}": {f"r{m}": value for m, value in enumerate(column) if value != "."}
        for n, column in enumerate(zip(*columns, strict=True))
    }


def test_alpha_of_krippendorffs_example():
    """Four observers, twelve units, nominal values and gaps, of his "Computing Krippendorff's
    alpha-reliability" (2011): .743.
    """
    found = krippendorff_alpha(units("123321412...", "1233224125.3", ".3332342251.", "12332441251."))
    assert found.mean == pytest.approx(0.743, abs=0.0005)


def test_kappa_of_a_table():
    """Twenty of both yes, fifteen of both no, five and ten split: .4, as on Cohen's own kind of table."""
    found = cohen_kappa(units("1" * 25 + "0" * 25, "1" * 20 + "0" * 5 + "1" * 10 + "0" * 15))
    assert found.mean == pytest.approx(0.4)
    assert found.low < 0.4 < found.high


def test_raw_agreement_counts_pairs():
    """Three raters of one unit are three pairs; clusters make the interval wider."""
    ratings = units("1101", "1111", "1001")
    assert raw_agreement(ratings).mean == pytest.approx(8 / 12)
    many = units("10" * 40, ("10" * 10 + "11" * 10) * 2)
    scenarios = {unit: str(int(unit[1:]) // 20) for unit in many}
    alone, together = raw_agreement(many), raw_agreement(many, scenarios)
    assert together.high - together.low > alone.high - alone.low


@pytest.mark.parametrize("measure", [krippendorff_alpha, cohen_kappa])
def test_nothing_is_said_of_nothing(measure):
    """No unit with two raters, or one value alone, gives NaN and no error."""
    assert math.isnan(measure(units("1.", ".1")).mean)
    assert math.isnan(measure(units("1111", "1111")).mean)
    assert math.isnan(measure({}).mean)
    few = measure(units("101", "100"))
    assert not math.isnan(few.mean)
    assert math.isnan(few.low)
