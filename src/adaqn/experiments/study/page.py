"""``docs/results.md``: what the study found, as tables and figures, losses included."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from adaqn.experiments.comparison import look, plots
from adaqn.experiments.comparison.labels import chief, label_ends
from adaqn.experiments.comparison.summary import over_seeds
from adaqn.experiments.errors import UserError
from adaqn.experiments.optimizers import entry
from adaqn.experiments.reading import content_text, is_there
from adaqn.experiments.study import anytime, profile
from adaqn.experiments.study.plan import Plan
from adaqn.experiments.study.summary import Found, Line, best_lines, mean_text, range_text
from adaqn.experiments.training.options import command
from adaqn.experiments.training.storage import write_atomically

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
NOTHING = "No task is finished yet: `adaqn study --plan` says what is missing."
COSINE = " ~"
"""Behind the loss of a method whose better regime has a schedule."""


Times = Mapping[str, Mapping[str, float]]
"""Cell → method → milliseconds of a step."""


def write_page(
    found: Found, later: anytime.Shown, times: Times, plan: Plan, page: Path, cells: Path | None = None
) -> list[Path]:
    """Tables between two marks of the page, whatever people wrote around them stays; figures beside it.

    ``later`` is what there is for the picture of the loss at any time; ``cells`` is the file of a study of one's own,
    for the commands that repeat a row.
    """
    page_text(page)  # says what is wrong with it before anything is drawn
    pictures = page.parent / "results"
    pictures.mkdir(parents=True, exist_ok=True)
    best = best_lines(found)
    written = [page, *profile.draw(found, pictures / profile.NAME), *anytime.draw(later, pictures / anytime.NAME)]
    for name, of_cell in best.items():
        written += draw(of_cell, pictures / name)
    write_between_marks(page, body(found, later, times, plan, cells))
    return written


def body(found: Found, later: anytime.Shown, times: Times, plan: Plan, cells: Path | None = None) -> list[str]:
    """What stands between the marks, part by part."""
    if not found:
        return [NOTHING]
    pictures = Path("results")
    parts = [overview(found, plan), costs(found, plan, times)]
    parts += [profile.text(found, pictures), anytime.text(later, pictures)]
    parts += [section(methods, pictures / f"{name}.svg", plan, cells) for name, methods in found.items()]
    return [part for part in parts if part]


def write_between_marks(page: Path, parts: list[str]) -> None:
    before, _, rest = page_text(page).partition(BEGIN)
    after = rest.partition(END)[2]
    whole = f"{before}{BEGIN}\n\n" + "\n\n".join(parts) + f"\n\n{END}{after}"
    write_atomically(page, whole.encode())


def page_text(page: Path) -> str:
    """What is there already."""
    if not is_there(page):
        return f"# Results\n\n{BEGIN}\n{END}\n"
    text = content_text(page)
    if not 0 <= text.find(BEGIN) < text.find(END):
        raise UserError(f"{page} has no {BEGIN} with {END} after it, between which the tables go; it was left in place")
    return text


def overview(found: Found, plan: Plan) -> str:
    """One row per cell: the headline numbers of the methods that run on all of them."""
    shown = plan.first
    labels = {line.method: line.label for methods in found.values() for line, *_ in methods}
    named = [labels.get(method, method) for method in shown]
    head = ["task", *named, *([f"{named[0]} untuned"] if shown else []), "best of all", "seconds to AdamW's end"]
    table = [head, ["---"] * len(head)]
    for name, methods in found.items():
        by_method = {regimes[0].method: regimes for regimes in methods}
        cells = [methods[0][0].panel.title + (" °" if name in plan.chosen_on else "")]
        cells += [_better(by_method[method]) if method in by_method else "–" for method in shown]
        cells += [mean_text(untuned_of(by_method.get(method, []))) for method in shown[:1]]
        cells += [methods[0][0].label, " / ".join(_seconds(by_method.get(method)) for method in shown)]
        table.append(cells)
    return (
        f"### All tasks: test loss at the end, mean over {plan.seeds} seeds\n\n"
        f"Every method in the better of its regimes on validation;{COSINE} marks a cosine schedule, judged at the last "
        "weights. ° marks the tasks on which presets were chosen. Seconds: "
        f"{' / '.join(named)}.\n\n{markdown(table)}"
    )


def costs(found: Found, plan: Plan, times: Times) -> str:
    """Milliseconds of a step, measured side by side, and the first method's over those of the others."""
    timed = [method for method in plan.timed if any(method in times.get(name, {}) for name in found)]
    if len(timed) < 2:
        return ""
    named = [entry(method).label for method in timed]
    head = ["task", *named, *(f"{named[0]} / {other}" for other in named[1:])]
    table = [head, ["---"] * len(head)]
    for name, methods in found.items():
        here = [times.get(name, {}).get(method) for method in timed]
        ratios = [here[0] / other if here[0] and other else None for other in here[1:]]
        words = [*(_decimals(value, 1) for value in here), *(_decimals(ratio, 2) for ratio in ratios)]
        table.append([methods[0][0].panel.title, *words])
    return (
        "### Milliseconds per step\n\nForward and backward pass, optimizer, monitor and average, side by side in one "
        f"process on one thread (`adaqn study --time`).\n\n{markdown(table)}"
    )


def _decimals(value: float | None, count: int) -> str:
    return "–" if value is None else f"{value:.{count}f}"


def untuned_of(regimes: list[Line]) -> list[float]:
    """Without a schedule, at the default step size."""
    return next((line.untuned for line in regimes if line.config.schedule == "constant"), [])


def _better(regimes: list[Line]) -> str:
    return mean_text(regimes[0].test) + ("" if regimes[0].config.schedule == "constant" else COSINE)


def _seconds(regimes: list[Line] | None) -> str:
    return _decimals(None if regimes is None else regimes[0].seconds_to_goal, 1)


def section(methods: list[list[Line]], picture: Path, plan: Plan, cells_file: Path | None = None) -> str:
    """The table of a cell: both regimes of every method, the better one bold, and the rest of that one."""
    first = methods[0][0]
    names = [regime.name for regime in plan.regimes]
    head = [
        "method", *(word for name in names for word in (name, "lr")), "lowest to highest", "untuned", "ms per step",
        "steps to AdamW's end", "seconds to AdamW's end", "stored / skipped / rejected",
    ]  # fmt: skip
    has_accuracy = bool(first.accuracy)
    if has_accuracy:
        head.insert(-5, "accuracy")
    table = [head, ["---"] * len(head)]
    for regimes in methods:
        better = regimes[0]
        row = [better.label, *(word for name in names for word in _regime(regimes, name)), range_text(better.test)]
        if has_accuracy:
            row.append(f"{100 * sum(better.accuracy) / len(better.accuracy):.1f} %" if better.accuracy else "–")
        row += [
            mean_text(untuned_of(regimes)),
            _decimals(better.milliseconds, 1),
            _decimals(better.steps_to_goal, 0),
            _seconds(regimes),
            "–" if better.cycles is None else " / ".join(map(str, better.cycles.values())),
        ]
        table.append(row)
    own = "" if cells_file is None else f" --tasks {cells_file}"
    repeat = f"adaqn study{own} --task {first.panel.name} --method {first.method} --results again --out again/runs"
    return (
        f"### {first.panel.title}\n\n"
        f"{first.steps} steps, {first.unit}; {len(methods)} methods.{_chosen(first, plan)}\n\n"
        f"![{first.panel.title}]({picture.as_posix()})\n\n{markdown(table)}\n\n"
        f"To repeat the first row: `{repeat}`. Its runs: `{command(first.config, range(first.seeds))}`"
    )


def _chosen(line: Line, plan: Plan) -> str:
    return " Presets were chosen on this task, among others." if line.panel.name in plan.chosen_on else ""


def _regime(regimes: list[Line], name: str) -> tuple[str, str]:
    """(loss, step size) there."""
    line = next((line for line in regimes if line.regime == name), None)
    if line is None:
        return "–", "–"
    text = mean_text(line.test)
    return f"**{text}**" if line is regimes[0] else text, f"{line.lr:g}" + (" †" if line.at_end else "")


def draw(of_cell: list[Line], stem: Path) -> list[Path]:
    """Mean test loss by step and, of those methods that were timed, by time; and a smaller picture for a phone."""
    best = chief(of_cell, lambda line: line.method)
    return [
        *plots.save(_drawing(of_cell, best, plots.DESKTOP), stem),
        *plots.save(_drawing(best, best, plots.PHONE), plots.for_phone(stem), ("svg",)),
    ]


def _drawing(of_cell: list[Line], best: list[Line], size: plots.Size) -> Figure:
    timed = [line for line in of_cell if line.milliseconds is not None]
    figure, axes = plots.panels(size, 1, 2 if timed else 1)
    by_step = [_drawn(line, minor=line not in best, short=size is plots.PHONE) for line in of_cell]
    plots.draw(axes[0][0], by_step, legend=False)
    plots.frame(axes[0][0], by_step, shown=plots.BEGUN, logarithmic=True)
    plots.name_axes(axes[0][0], "step", f"test loss ({of_cell[0].unit})", of_cell[0].panel.title)
    label_ends(axes[0][0], by_step)
    if timed:
        by_time = [_drawn(line, (line.milliseconds or 0.0) / 1e3, minor=line not in best) for line in timed]
        plots.draw(axes[0][1], by_time, legend=False)
        plots.name_axes(axes[0][1], "seconds of training, one thread", "test loss" if size is plots.PHONE else "")
    return figure


def _drawn(line: Line, factor: float = 1.0, *, minor: bool = False, short: bool = False) -> look.Line:
    steps = [step * factor for step in line.runs[0]["trace"]["step"]]
    label = line.label if short else f"{line.label}  {mean_text(line.test)}"
    values = over_seeds([run["trace"][line.key] for run in line.runs])
    return look.line(label, look.colour(line.method), steps, values, look.style_among_many(line.method), minor=minor)


def as_json_rows(found: Found) -> list[dict[str, Any]]:
    """For other programs."""
    kept = (
        "method", "regime", "lr", "seeds", "valid", "test", "untuned", "milliseconds", "goal", "steps_to_goal",
        "seconds_to_goal",
    )  # fmt: skip
    return [
        {"cell": name, "better": line is regimes[0], **{key: getattr(line, key) for key in kept}}
        for name, methods in found.items()
        for regimes in methods
        for line in regimes
    ]


def markdown(table: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in table)
