"""What a run works with, once it has been found and checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kestrel_lab.core.events import HealthChanged
from kestrel_lab.core.limits import Limits
from kestrel_lab.core.protocols import Approver, Model
from kestrel_lab.engine.containment import Containment
from kestrel_lab.engine.ports import Ports
from kestrel_lab.engine.showing import Growth
from kestrel_lab.middleware.cache import CacheMode
from kestrel_lab.middleware.policy import Policy
from kestrel_lab.tools.registry import Toolbox
from kestrel_lab.tools.workspace import Workspace


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """Model, tools, place, bounds, and who decides."""

    model: Model
    toolbox: Toolbox
    workspace: Workspace
    limits: Limits
    policy: Policy
    approver: Approver | None
    resolve: Callable[[str], Model]
    """The model of a name, for steps that have one of their own."""
    ports: Ports
    containment: Containment
    missing: tuple[HealthChanged, ...] = ()
    """What is configured and cannot be used: told at the beginning, and done without."""
    cache_mode: CacheMode | None = None
    """How the tool cache is used; `None` for as the session says."""
    growth: Growth | None = None
    """What finds more tools for the run."""
