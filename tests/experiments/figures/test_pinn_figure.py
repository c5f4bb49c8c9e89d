"""The figure of an equation, and its report: maps, and curves of loss and error."""

import json

import pytest
from laboratory import command, refused

from adaqn.experiments.results.report import report_data

RIVALS = "torch-lbfgs,adam:0.01,scipy-lbfgs"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    out = tmp_path_factory.mktemp("figure")
    words = ["--steps", 12, "--seeds", 2, "--workers", 1, "--optimizers", RIVALS, "--out", out, "--json"]
    done = command("figure", "pinn", "--problem", "poisson", *words)
    assert done.exit_code == 0, done.output
    return out, json.loads(done.output)


def test_pictures_numbers_and_a_report_are_written(drawn):
    out, said = drawn
    assert {row["curve"] for row in said["rows"]} == {"L-BFGS (torch)", "Adam", "L-BFGS-B (scipy)"}
    assert all(row["test_error"]["mean"] > 0 and row["seeds"] == 2 for row in said["rows"])
    assert all((out / f"pinn-poisson{end}").stat().st_size > 10_000 for end in (".png", ".svg", "-phone.svg"))
    assert "--problem poisson" in said["rows"][0]["command"]
    assert "Loss by evaluations" in (out / "report.html").read_text()


def test_the_report_has_maps_of_the_smallest_error_and_curves_of_errors(drawn):
    out, said = drawn
    (panel,) = report_data(out)["panels"]
    assert panel["whole"]
    assert panel["data"] == "poisson"
    assert all(len(group["error"]["mean"]) == len(group["epoch"]) for group in panel["groups"])
    maps = panel["maps"]
    assert len(maps["found"]) == len(maps["exact"]) == len(maps["y"])
    assert len(maps["found"][0]) == len(maps["x"])
    assert maps["relative"] == min(row["test_error"]["low"] for row in said["rows"])
    difference = abs(maps["found"][3][5] - maps["exact"][3][5])
    assert maps["error"][3][5] == pytest.approx(difference, abs=2e-3)


def test_options_of_other_figures_are_refused():
    assert "leave out" in refused("figure", "pinn", "--scale", "paper")
    assert "--redraw" in refused("figure", "pinn", "--redraw")
    assert "no problem called 'heat'" in refused("figure", "pinn", "--problem", "heat")
