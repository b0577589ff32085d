"""Next actions as lines to be copied: nothing here can be clicked or is run."""

from __future__ import annotations

from kestrel_lab.answers.next_actions import NextAction
from kestrel_lab.views.formatting import action_line
from kestrel_lab.views.html.table_view import TextView


class Actions(TextView, tuple[NextAction, ...]):
    """The next actions in order, shown as a line each."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(action_line(one.text, one.why) for one in self) or "no next action was found"
