"""How a cycle can end."""

from enum import Enum


class Outcome(Enum):
    """The five ends of a cycle. All that is reported about a run is a count over these."""

    STARTED = "started"
    """The first average: it becomes the anchor, and there is nothing yet to compare it with."""
    KEPT = "kept"
    """Accepted, by a method that keeps no pairs; the anchor moved."""
    STORED = "stored"
    """Accepted, and its curvature pair is in memory; the anchor moved."""
    SKIPPED = "skipped"
    """Accepted, but its curvature was too small to store; the anchor stays (D6)."""
    REJECTED = "rejected"
    """Worse than the anchor: memory cleared, weights back at the anchor."""
