"""recognizers-text reads time expressions: JSON on standard input, `MEASURED` and answers out."""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime

from recognizers_date_time import DateTimeRecognizer


def main() -> None:
    """Answer every expression whose whole text it recognises as one time, of two the one to come."""
    model = DateTimeRecognizer("en-us").get_datetime_model()
    answers, began = [], time.perf_counter()
    for row in json.load(sys.stdin):
        found = model.parse(row["text"], datetime.fromisoformat(row["ref"]))
        whole = [one for one in found if (one.start, one.end) == (0, len(row["text"]) - 1)]
        values = (whole[0].resolution or {}).get("values", []) if len(found) == len(whole) == 1 else []
        value = values[-1].get("value") or values[-1].get("start") if values else None
        answers.append(None if value in (None, "not resolved") else value)
    print(
        "MEASURED "
        + json.dumps({"answers": answers, "ms": (time.perf_counter() - began) * 1000 / max(len(answers), 1)})
    )


if __name__ == "__main__":
    main()
