"""Services that the runs of a lab share: log, secrets, cache, health, taint of files."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kestrel_lab.core.redaction import Redactor
    from kestrel_lab.eventlog.store import SessionStore
    from kestrel_lab.runtime.context.budget import MaxUsageByModel
    from kestrel_lab.runtime.context.tool_cache import ToolCaching
    from kestrel_lab.runtime.security.file_taint import FileTaint
    from kestrel_lab.runtime.supervision.supervisor import RuntimeSupervisor


class RunServices:
    """What a lab gives to each of its runs."""

    store: SessionStore
    """The log."""
    redactor: Redactor
    """Knows the secrets that neither the log nor a model nor a screen is to have."""
    cache: ToolCaching
    """Where answers of pure tools are kept."""
    supervisor: RuntimeSupervisor
    """Health of what runs depend on."""
    files: FileTaint
    """Which files hold words of others."""
    max_usage: MaxUsageByModel
    """What calls of models used at most, by model."""

    __slots__ = ("__weakref__", *__annotations__)
