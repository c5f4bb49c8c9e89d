"""The report: its data, and the page in a real browser."""

import json
import math
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from laboratory import unsealed

from adaqn.experiments.commands import train
from adaqn.experiments.commands.app import app
from adaqn.experiments.comparison.look import colour
from adaqn.experiments.errors import UserError
from adaqn.experiments.results import report
from adaqn.experiments.results.groups import Group, describe
from adaqn.experiments.results.report import as_script_data, collect, report_data, write_report
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import CONFIG, METRICS, RESULT
from adaqn.experiments.training.options import command, resolved
from adaqn.experiments.training.parallel import run_one
from adaqn.experiments.training.run import Run

ARGUMENTS = [
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
SMALL = RunConfig(layers=1, hidden=8, limit=6_000, steps=24, batch_size=8, length=20, evaluations=6, lr=0.01)
EVIL = "<script>alert(1)</script>.txt"


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """Two tasks; three optimizers; two step sizes and two seeds of one; a hostile name; an unfinished run."""
    root = tmp_path_factory.mktemp("runs")
    evil = root / "texts" / EVIL
    evil.parent.mkdir(parents=True)
    evil.write_text("the quick brown fox jumps. " * 200, encoding="utf-8")
    configs = {
        "adaqn-0": replace(SMALL, options={"cycle_length": 3}),
        "adaqn-1": replace(SMALL, options={"cycle_length": 3}, seed=1),
        "adaqn-lr": replace(SMALL, options={"cycle_length": 3}, lr=0.03),
        "adam": replace(SMALL, optimizer="adam"),
        "evil": replace(SMALL, optimizer="adam", data=str(evil)),
        "mlp": replace(SMALL, task="mlp", optimizer="adagrad", limit=200, length=None),
    }
    for name, config in configs.items():
        run_one(config, root / name)
    shutil.copytree(root / "adam", root / "copies" / "adam")
    killed = Run(SMALL, root / "killed")
    killed.begin()
    killed.measure()
    return root


@pytest.fixture(scope="module")
def data(root):
    return report_data(root)


def panel(data, task, source="embedded"):
    return next(p for p in data["panels"] if p["task"] == task and p["data"] == source)


def test_runs_that_differ_in_their_seed_are_one_group_and_copies_count_once(data):
    groups = panel(data, "char-lm")["groups"]
    assert sorted((g["optimizer"], g["lr"], g["seeds"]) for g in groups) == [
        ("adam", 0.01, [0]),
        ("adaqn", 0.01, [0, 1]),
        ("adaqn", 0.03, [0]),
    ]
    assert (data["runs"], data["copies"]) == (6, 1)
    assert [run["folder"] for run in data["unfinished"]] == ["killed"]


def test_curves_are_means_with_the_lowest_and_the_highest(root, data):
    group = next(g for g in panel(data, "char-lm")["groups"] if g["seeds"] == [0, 1])
    runs = [collect(root / name)[0][0] for name in ("adaqn-0", "adaqn-1")]
    for i, pair in enumerate(zip(*(run.metrics for run in runs), strict=True)):
        values = [record["test_loss"] for record in pair]
        assert group["loss"]["mean"][i] == pytest.approx(sum(values) / 2, rel=1e-6)
        assert (group["loss"]["low"][i], group["loss"]["high"][i]) == (min(values), max(values))
    assert group["test"]["mean"] == group["loss"]["mean"][-1]
    assert group["colour"] == colour("adaqn")


def test_verdicts_are_of_the_interval_and_only_of_optimizers_that_have_them(root, data):
    by_name = {g["optimizer"]: g for g in panel(data, "char-lm")["groups"] if g["lr"] == 0.01}
    finals = [collect(root / name)[0][0].result["final"] for name in ("adaqn-0", "adaqn-1")]
    for verdict in ("stored", "skipped", "rejected"):
        total = sum(by_name["adaqn"]["verdicts"][verdict])
        assert total == pytest.approx(sum(final[verdict] for final in finals) / 2)
    assert len(by_name["adaqn"]["memory"]["mean"]) == len(by_name["adaqn"]["epoch"]) - 1
    assert by_name["adam"]["verdicts"] is by_name["adam"]["memory"] is None


@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        replace(SMALL, optimizer="adam", lr=None, options={"betas": [0.8, 0.9]}, data="it's a <file>.txt", clip=1.0),
        RunConfig(task="pixel-mnist", model="relu", epochs=0.5, spread="std", threads=2),
        RunConfig(model="lstm", carry_state=True, options={"scaling": "adam", "cycle_length": 5}),
    ],
)
def test_the_command_repeats_the_run(config, monkeypatch, tmp_path):
    given = []

    def stop(config, *rest):
        given.append(config)
        raise UserError("enough")

    monkeypatch.setattr(train, "run_one", stop)
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command(config.complete(), [3]))
    with pytest.raises(UserError, match="enough"):
        app(words[1:], standalone_mode=False)
    assert resolved(given[0]).identity() == resolved(replace(config, seed=3)).identity()


def test_several_seeds_are_a_loop_of_the_shell():
    text = command(replace(SMALL, data="a b.txt"), [0, 2]).replace("adaqn train", "echo")
    lines = subprocess.run(["/bin/sh", "-c", text], capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.split()[-1] for line in lines] == ["0", "2"]
    assert "--data a b.txt --optimizer" in lines[0]


def test_the_memory_of_the_optimizer_is_told_and_may_be_missing_in_older_runs(root, data):
    by_name = {g["optimizer"]: g for g in panel(data, "char-lm")["groups"]}
    weights = by_name["adam"]["parameter_bytes"]
    assert 2 * weights <= by_name["adam"]["optimizer_bytes"] < 2.2 * weights  # two moments, and a count per tensor
    assert by_name["adaqn"]["optimizer_bytes"] > by_name["adam"]["optimizer_bytes"]
    run = collect(root / "adam")[0][0]
    older = {name: value for name, value in run.result.items() if not name.endswith("_bytes")}
    group = Group(RunConfig.from_json(run.result["config"]), [replace(run, result=older)])
    assert describe([group])[0]["optimizer_bytes"] is None


def test_the_loss_at_the_average_is_told_of_methods_that_have_one(root, data):
    by_name = {g["optimizer"]: g for g in panel(data, "char-lm")["groups"]}
    finals = [json.loads((root / name / RESULT).read_text())["final"] for name in ("adaqn-0", "adaqn-1")]
    adaqn = next(g for g in panel(data, "char-lm")["groups"] if g["optimizer"] == "adaqn" and g["lr"] == 0.01)
    assert adaqn["averaged"]["mean"] == pytest.approx(sum(final["averaged_test_loss"] for final in finals) / 2)
    assert by_name["adam"]["averaged"] is None


def test_the_table_has_the_loss_at_the_average(page, data):
    adaqn = next(g for g in panel(data, "char-lm")["groups"] if g["optimizer"] == "adaqn" and g["lr"] == 0.01)
    told = page.locator('#table td[data-name="at the average"]').all_inner_texts()
    assert f"{adaqn['averaged']['mean']:.4f}" in told
    assert "–" in told


def test_nothing_in_the_data_can_end_the_script_element():
    text = as_script_data({"name": "</script><!-- &", "numbers": [math.nan, math.inf, 1.0]})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"name": "</script><!-- &", "numbers": [None, None, 1.0]}


def test_a_folder_without_runs_is_one_clear_error(tmp_path):
    with pytest.raises(UserError, match="no runs below"):
        write_report(tmp_path)
    with pytest.raises(UserError, match="there is no folder"):
        write_report(tmp_path / "missing")
    assert not list(tmp_path.iterdir())


def test_a_damaged_run_is_named_and_the_others_are_shown(root, tmp_path):
    shutil.copytree(root / "adam", tmp_path / "good")
    shutil.copytree(root / "adam", tmp_path / "cut")
    (tmp_path / "cut" / RESULT).write_text('{"config": ')
    shutil.copytree(root / "mlp", tmp_path / "empty")
    (tmp_path / "empty" / METRICS).write_text("")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / CONFIG).write_text("{}")
    data = report_data(tmp_path)
    assert data["runs"] == 1
    assert [(run["folder"], run["state"].split(":")[0]) for run in data["unfinished"]] == [
        ("cut", "left out"),
        ("empty", "left out"),
    ]


def change_of(*places, to):
    """Another value somewhere in a result; ``None`` for a place that is taken out."""

    def change(values):
        for place in places[:-1]:
            values = values[place]
        if to is GONE:
            del values[places[-1]]
        else:
            values[places[-1]] = to

    return change


GONE = object()
HUGE = 10**400
BAD = {
    "loss as text": change_of("final", "test_loss", to="1.5"),
    "loss as a list": change_of("final", "test_loss", to=[1]),
    "loss of 400 digits": change_of("final", "test_loss", to=HUGE),
    "best is null": change_of("best", to=None),
    "best without a loss": change_of("best", "valid_loss", to=GONE),
    "final is a text": change_of("final", to="x"),
    "seconds as text": change_of("seconds", to="1"),
    "seconds gone": change_of("seconds", to=GONE),
    "steps null": change_of("steps", to=None),
    "unit a number": change_of("unit", to=3),
    "identity a list": change_of("identity", to=[]),
    "identity gone": change_of("identity", to=GONE),
    "checksum null": change_of("data_sha256", to=None),
    "config null": change_of("config", to=None),
    "seed as text": change_of("config", "seed", to="0"),
    "seed gone": change_of("config", "seed", to=GONE),
    "seed of 400 digits": change_of("config", "seed", to=HUGE),
    "hidden as text": change_of("config", "hidden", to="8"),
    "options a list": change_of("config", "options", to=[1]),
    "lr true": change_of("config", "lr", to=True),
    "task of a newer version": change_of("config", "task", to="translation"),
    "model of a newer version": change_of("config", "model", to="mamba"),
    "optimizer of a newer version": change_of("config", "optimizer", to="adaqn-9"),
    "setting of a newer version": change_of("config", "precision", to="fp8"),
    "dtype of a newer version": change_of("config", "dtype", to="fp8"),
    "verdicts as text": change_of("final", "stored", to="many"),
}
LINES = [
    b"null\n", b"[]\n", b"{}\n", b'{"step": "x", "epoch": 0, "seconds": 0, "valid_loss": 1, "test_loss": 1}\n',
    b'{"step": 0, "epoch": "x", "seconds": 0, "valid_loss": 1, "test_loss": 1}\n', b"\xff\n", b"[" * 100_000 + b"\n{}",
    b'{"step": 0, "epoch": 0, "seconds": 0, "valid_loss": ' + b"9" * 5_000 + b', "test_loss": 1}\n',
]  # fmt: skip


def test_bad_neighbours_are_left_out_and_named(root, tmp_path):
    """Also those that are sound in themselves and fail beside others, and those that cannot be read."""
    shutil.copytree(root / "adam", tmp_path / "good")
    for name, change in BAD.items():
        shutil.copytree(root / "adam", tmp_path / name)
        unsealed(tmp_path / name / RESULT, change)
    for number, content in enumerate(LINES):
        for unfinished in (False, True):
            folder = tmp_path / f"lines {number}{unfinished}"
            shutil.copytree(root / "adam", folder)
            unsealed(folder / RESULT)
            (folder / METRICS).write_bytes(content)
            if unfinished:
                (folder / RESULT).unlink()
    for name in (CONFIG, METRICS, RESULT):
        shutil.copytree(root / "adam", tmp_path / f"folder {name}")
        (tmp_path / f"folder {name}" / name).unlink()
        (tmp_path / f"folder {name}" / name).mkdir()
    shutil.copytree(root / "adam", tmp_path / "loop")
    (tmp_path / "loop" / RESULT).unlink()
    (tmp_path / "loop" / RESULT).symlink_to(tmp_path / "loop" / RESULT)
    shutil.copytree(root / "adam", tmp_path / "extra")  # good: more than is known is no harm
    unsealed(tmp_path / "extra" / RESULT, change_of("more", to=[1]))
    data = report_data(tmp_path)
    bad = [*BAD, *(f"lines {n}{u}" for n in range(len(LINES)) for u in (False, True)), "loop"]
    bad += [f"folder {name}" for name in (METRICS, RESULT)]
    assert sorted(run["folder"] for run in data["unfinished"]) == sorted(bad)
    assert all(run["state"].startswith(("left out: ", "not finished: ")) for run in data["unfinished"])
    assert (data["runs"], data["copies"]) == (1, 2)  # a result says all; its configuration is not looked at again
    write_report(tmp_path)


def test_folders_that_cannot_be_read_are_named(root, tmp_path, monkeypatch):
    shutil.copytree(root / "adam", tmp_path / "good")
    shutil.copytree(root / "adam", tmp_path / "closed")
    real = os.scandir

    def scandir(path):
        if str(path) == str(tmp_path / "closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    data = report_data(tmp_path)
    assert data["runs"] == 1
    assert data["unfinished"] == [{"folder": "closed", "state": "left out: cannot be read: Permission denied"}]


def test_a_loss_that_is_not_finite_is_null_in_the_page(root, tmp_path):
    shutil.copytree(root / "adam", tmp_path / "run")
    unsealed(tmp_path / "run" / RESULT)
    for name in (METRICS, RESULT):
        text = (tmp_path / "run" / name).read_text()
        (tmp_path / "run" / name).write_text(text.replace('"test_loss": ', '"test_loss": NaN, "was": '))
    group = json.loads(as_script_data(report_data(tmp_path)))["panels"][0]["groups"][0]
    assert group["test"]["mean"] is None
    assert set(group["loss"]["mean"]) == {None}


def test_losses_that_are_almost_infinite_have_a_mean(root, tmp_path):
    """Their sum is more than a float holds."""
    for name in ("adaqn-0", "adaqn-1"):
        shutil.copytree(root / name, tmp_path / name)
        unsealed(tmp_path / name / RESULT)
        for file in (METRICS, RESULT):
            text = (tmp_path / name / file).read_text()
            (tmp_path / name / file).write_text(text.replace('"test_loss": ', '"test_loss": 1.7e308, "was": '))
    group = report_data(tmp_path)["panels"][0]["groups"][0]
    assert group["seeds"] == [0, 1]
    assert group["test"]["mean"] == pytest.approx(1.7e308)


def test_a_run_is_found_however_deep_it_lies(root, tmp_path, monkeypatch):
    depth = sys.getrecursionlimit() + 10
    monkeypatch.chdir(tmp_path)
    for _ in range(depth):
        os.mkdir("d")
        os.chdir("d")
    shutil.copytree(root / "adam", "run")
    try:
        assert report_data(tmp_path)["runs"] == 1
    finally:  # what removes the folders of tests would not come so deep
        shutil.rmtree("run")
        for _ in range(depth):
            os.chdir("..")
            os.rmdir("d")


# ---------------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def browser(chromium):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(root, tmp_path_factory):
    return write_report(root, tmp_path_factory.mktemp("page") / "report.html").as_uri()


@pytest.fixture(scope="module", params=[1280, 390])
def opened(request, browser, address):
    """The page, what it said to the console, and what it asked of the network; opened once, as plotly is large."""
    scheme = "dark" if request.param == 390 else "light"
    page = browser.new_page(viewport={"width": request.param, "height": 900}, color_scheme=scheme)
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda sent: asked.append(sent.url))
    page.goto(address)
    page.wait_for_selector(".panel .main-svg")
    yield page, said, asked
    page.close()


@pytest.fixture
def page(opened, address):
    """Every test leaves the filters as they were. An error or a request for anything but the page fails it."""
    page, said, asked = opened
    yield page
    page.wait_for_timeout(50)
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [address]


def traces(page, title):
    """Lines or bars drawn in the visible charts of that title."""
    cards = page.locator(".panel:visible .card:visible").filter(has=page.get_by_role("heading", name=title, exact=True))
    return cards.locator(".scatterlayer .trace path.js-line, .barlayer .trace.bars")


def with_trouble(data):
    """The groups of a report with a cycle that stored no pair."""
    judged = [g["verdicts"] for p in data["panels"] for g in p["groups"] if g["verdicts"]]
    return [v for v in judged if sum(v["skipped"]) + sum(v["rejected"])]


def rows(page):
    return page.locator("#table tbody:visible")


def test_the_charts_are_drawn(page, data):
    assert page.locator(".panel:visible").count() == 3
    assert traces(page, "Test loss by epoch").count() == 5 + 2  # one group has two seeds, and so a band's edges
    assert traces(page, "Test loss by wall-clock time").count() == 5 + 2
    assert traces(page, "Step-size sensitivity").count() == 1
    assert (
        page.get_by_role("heading", name="L-BFGS memory").filter(visible=True).count() == 0
    )  # the default has no pairs
    assert traces(page, "Verdicts").count() == 2 * len(with_trouble(data))
    assert rows(page).count() == 5
    assert "killed" in page.locator("#others").inner_text()


def test_pairs_are_drawn_for_the_methods_that_have_them(browser, tmp_path):
    for optimizer in ("adaqn", "adaqn-paper", "adam"):
        run_one(replace(SMALL, optimizer=optimizer), tmp_path / optimizer)
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(write_report(tmp_path).as_uri())
    assert traces(page, "L-BFGS memory").count() == 1
    page.get_by_role("checkbox", name="adaQN (paper)").uncheck()
    assert page.get_by_role("heading", name="L-BFGS memory").filter(visible=True).count() == 0
    page.close()


def test_filters_hide_and_show_rows_and_traces(page):
    adam, language, mlp = (page.get_by_role("checkbox", name=name, exact=True) for name in ("Adam", "char-lm", "mlp"))
    adam.uncheck()
    assert rows(page).count() == 3
    assert traces(page, "Test loss by epoch").count() == 3 + 2
    assert page.locator(".panel:visible").count() == 2
    language.uncheck()
    assert rows(page).count() == 1
    assert traces(page, "Verdicts").count() == 0
    mlp.uncheck()
    assert page.get_by_text("Nothing is selected").is_visible()
    for box in (mlp, language, adam):
        box.check()
    assert rows(page).count() == 5
    assert traces(page, "Test loss by epoch").count() == 5 + 2


def test_a_column_sorts_both_ways(page):
    def losses():
        return [float(text) for text in page.locator('#table td[data-name="test loss"]').all_inner_texts()]

    header = page.get_by_role("columnheader", name="test loss")
    header.get_by_role("button").click()
    assert losses() == sorted(losses())
    assert header.get_attribute("aria-sort") == "ascending"
    header.get_by_role("button").click()
    assert losses() == sorted(losses(), reverse=True)


def test_a_name_with_a_script_in_it_stays_text(page):
    assert page.locator(".panel h2").filter(has_text=EVIL).count() == 1
    assert page.locator("#table td.wide").filter(has_text=EVIL).count() == 1
    assert page.locator("#table code").filter(has_text=EVIL).count() == 1
    assert page.locator("script").count() == 3  # the data, plotly, the page's own


def test_the_page_does_not_scroll_sideways(page):
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_on_a_phone_a_row_of_the_table_is_a_card_with_names(page):
    if page.viewport_size["width"] > 600:
        pytest.skip("as wide as a table")
    assert page.locator(".scroll").evaluate("e => e.scrollWidth <= e.clientWidth")
    cell = page.locator("#table tbody td").filter(has_text="Adam").first
    assert cell.evaluate("e => getComputedStyle(e, '::before').content") == '"optimizer"'
    boxes = [cell.bounding_box() for cell in page.locator("#table tbody").first.locator("tr:first-child td").all()]
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= 390 for box in boxes)


def plot(page, title):
    """The chart of that title in the panel of the embedded text."""
    cards = page.locator(".panel").filter(has_text="char-lm · embedded · tanh").locator(".card")
    return cards.filter(has=page.get_by_role("heading", name=title, exact=True)).locator(".plot")


def axis(page, title, name="yaxis"):
    """What plotly made of an axis."""
    read = "(plot, name) => { const a = plot._fullLayout[name]; return {type: a.type, range: [...a.range]}; }"
    return plot(page, title).evaluate(read, name)


def drawn(page, title):
    """The heights of the lines."""
    return plot(page, title).evaluate("plot => plot.data.map(trace => [...trace.y])")


def test_the_headline_is_on_top(page, data):
    shown = page.locator("#headlines li").all_inner_texts()
    said = [p["headline"] for p in data["panels"] if p["headline"]]
    assert len(said) == 1  # the other panels have one optimizer each
    assert shown == [f"char-lm · embedded · tanh: {said[0]}"]


def test_axes_are_linear_or_logarithmic(page):
    title = "Test loss by wall-clock time"
    assert (axis(page, title)["type"], axis(page, title, "xaxis")["type"]) == ("linear", "linear")
    loss, along = page.get_by_label("loss axis"), page.get_by_label("epochs and seconds")
    loss.select_option("log")
    along.select_option("log")
    assert (axis(page, title)["type"], axis(page, title, "xaxis")["type"]) == ("log", "log")
    loss.select_option("fit")
    along.select_option("linear")
    assert axis(page, title)["type"] == "linear"


def test_the_range_begins_where_learning_has_begun_or_at_the_first_step(page, data):
    groups = panel(data, "char-lm")["groups"]
    start, ends = max(g["loss"]["high"][0] for g in groups), max(g["loss"]["high"][-1] for g in groups)
    low, high = axis(page, "Test loss by epoch")["range"]
    assert low < min(min(g["loss"]["low"]) for g in groups)
    assert ends <= high < start
    assert page.get_by_text("The first steps are above the picture").first.is_visible()
    box = page.get_by_role("checkbox", name="from the first step")
    box.check()
    assert axis(page, "Test loss by epoch")["range"][1] > start
    box.uncheck()


def test_smoothing_is_a_mean_over_neighbours_that_leaves_the_ends(page):
    before = drawn(page, "Test loss by epoch")
    page.get_by_label("smoothing").select_option("3")
    after = drawn(page, "Test loss by epoch")
    for raw, smooth in zip(before, after, strict=True):
        assert (smooth[0], smooth[-1]) == (raw[0], raw[-1])
        assert smooth[2] == pytest.approx(sum(raw[1:4]) / 3)
    page.get_by_label("smoothing").select_option("1")


def test_two_runs_side_by_side_show_what_differs(page):
    first, second = (page.locator(f"#pair select[name={side}]") for side in "ab")
    labels = first.locator("option").all_inner_texts()
    slow = next(i for i, text in enumerate(labels) if text.startswith("AdaQN (lr 0.01"))
    fast = next(i for i, text in enumerate(labels) if text.startswith("AdaQN (lr 0.03"))
    chosen = [first.input_value(), second.input_value()]
    first.select_option(str(slow))
    second.select_option(str(fast))
    shown = [row.inner_text().split("\t") for row in page.locator("#sides tbody tr").all()]
    settings = {name: values for name, *values in shown}
    assert settings["lr"] == ["0.01", "0.03"]
    assert settings["seed"] == ["0, 1", "0"]
    assert "task" not in settings
    assert "× the weights" in settings["memory of the optimizer"][0]
    only = page.get_by_role("checkbox", name="only these two")
    only.check()
    assert rows(page).count() == 2
    only.uncheck()
    first.select_option(chosen[0])
    second.select_option(chosen[1])


@pytest.mark.parametrize("end, words", [("kept", "every one kept"), ("stored", "every one stored a pair")])
def test_verdicts_are_said_in_words_where_there_is_nothing_to_draw(browser, root, tmp_path, monkeypatch, end, words):
    calm = report_data(root / "adaqn-0")
    verdicts = calm["panels"][0]["groups"][0]["verdicts"]
    verdicts |= {name: [int(name == end)] * len(found) for name, found in verdicts.items()}
    monkeypatch.setattr(report, "report_data", lambda root: calm)
    page = browser.new_page()
    page.goto(write_report(root, tmp_path / "report.html").as_uri())
    card = page.locator(".card").filter(has=page.get_by_role("heading", name="Verdicts", exact=True))
    assert words in card.inner_text()
    assert not card.locator(".plot").is_visible()
    page.close()


def test_the_command_on_the_page_is_the_command(page, data):
    shown = page.locator("#table code").all_text_contents()
    assert sorted(shown) == sorted(group["command"] for panel in data["panels"] for group in panel["groups"])
