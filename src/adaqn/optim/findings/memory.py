"""What the history takes."""

from __future__ import annotations

from adaqn.optim.findings.finding import HINT, NOTE, Finding, size
from adaqn.optim.record import Record

LARGE = 1_000_000_000
"""Bytes of history from which on less may be wanted."""
SMALLER_FISHER = 10


def large_history(record: Record) -> Finding | None:
    s = record.settings
    if s.size.total < LARGE:
        return None
    less = []
    if s.size_in_bfloat16.total < s.size.total:
        both = ", fisher_dtype=torch.bfloat16" if s.fisher_size else ""
        less.append(f"bf16 would take {size(s.size_in_bfloat16.total)} (history_dtype=torch.bfloat16{both})")
    if s.fisher_size > SMALLER_FISHER:
        saved = (s.fisher_size - SMALLER_FISHER) * s.row
        less.append(f"fisher_size={SMALLER_FISHER} would take {size(s.size.total - saved)}")
    if s.fisher_size:
        less.append(f"curvature=EmpiricalFisher(...) {size(s.size.total - s.size.gradients)}")
    elif s.memory_size > 1:
        less.append(f"memory_size={s.memory_size // 2} about {size(s.size.total - s.size.pairs // 2)}")
    return Finding("large-history", HINT, f"the history takes {parts(record)}", "; ".join(less))


def parts(record: Record) -> str:
    """The bytes and what they are for."""
    found = record.settings.size
    named = (("pairs", found.pairs), ("gradients", found.gradients), ("H0", found.h0), ("others", found.others))
    return f"{size(found.total)} (" + ", ".join(f"{name} {size(count)}" for name, count in named if count) + ")"


def wide_layers(record: Record) -> Finding | None:
    """Where a Kronecker H0 is a diagonal one."""
    s = record.settings
    if not s.wide or s.max_dimension is None:
        return None
    diagonal = sum(min(p, q) > s.max_dimension for p, q in s.wide)
    p, q = max(s.wide, key=max)
    bases = 2 * sum(side**2 for shape in s.wide for side in shape if side > s.max_dimension)
    count = "1 matrix" if len(s.wide) == 1 else f"{len(s.wide)} matrices"
    return Finding(
        "wide-layers",
        NOTE,
        f"{count} with a side longer than {s.max_dimension:,} "
        f"({p:,} × {q:,} the widest) {'has' if len(s.wide) == 1 else 'have'} no basis along it"
        + (f", and {diagonal} of them Adam's diagonal" if diagonal else ""),
        f"scaling=Kronecker(max_dimension={max(p, q)}) gives them one for {bases:,} more numbers; if most of the "
        'weights are in them, preset="modern" costs less for the same',
    )
