"""The figure of noise: every method at every number of points per sample."""

import json
import shutil

import pytest
from laboratory import command, refused

from adaqn.experiments.figures import noise
from adaqn.experiments.problems import pinn


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    out = tmp_path_factory.mktemp("noise")
    words = ["--steps", 6, "--seeds", 1, "--workers", 1, "--out", out, "--json"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pinn, "MEASURED_INSIDE", 200)
        patch.setattr(noise.noise_spec, "__defaults__", ((60, 20), (3,)))
        done = command("figure", "noise", "--problem", "poisson", *words)
    assert done.exit_code == 0, done.output
    return out, json.loads(done.output)


def test_pictures_numbers_and_a_report_are_written(drawn):
    out, said = drawn
    assert len(said["rows"]) == 3 * len(noise.VARIANTS)
    assert {(row["points"], row["resample"]) for row in said["rows"]} == {(60, 6), (60, 3), (20, 3)}
    assert all(row["noise"]["mean"] > 0 and row["test_loss"]["mean"] > 0 for row in said["rows"])
    assert all((out / f"noise-poisson{end}").stat().st_size > 10_000 for end in (".png", ".svg", "-phone.svg"))
    assert "--resample 3" in said["rows"][-1]["command"]
    assert (out / "report.html").exists()


def test_the_table_is_enough_to_draw_it_again(drawn, tmp_path, monkeypatch):
    """With the evaluations of its runs, whatever the default is."""
    out, _ = drawn
    monkeypatch.setattr(noise.noise_spec, "__defaults__", ((60, 20), (3,)))
    shutil.copy(out / "noise-poisson.json", tmp_path)
    words = ("figure", "noise", "--problem", "poisson", "--redraw", "--out", tmp_path)
    done = command(*words)
    assert done.exit_code == 0, done.output
    for end in (".png", ".svg", "-phone.svg"):
        assert (tmp_path / f"noise-poisson{end}").read_bytes() == (out / f"noise-poisson{end}").read_bytes()
    rows = json.loads((tmp_path / "noise-poisson.json").read_text())
    (tmp_path / "noise-poisson.json").write_text(json.dumps([{**rows[0], "noise": None}]))
    assert "noise-poisson.json is damaged" in refused(*words)
    del rows[0]["noise"]
    (tmp_path / "noise-poisson.json").write_text(json.dumps(rows))
    assert "its rows need points, resample, test_loss, test_error, noise" in refused(*words)
    assert "there is no" in refused("figure", "noise", "--problem", "wave", "--redraw", "--out", tmp_path)


def test_fewer_points_are_more_noise(drawn):
    _, said = drawn
    many, few = ([row["noise"]["mean"] for row in said["rows"] if row["points"] == count] for count in (60, 20))
    assert sum(few) / len(few) > sum(many) / len(many)


def test_curves_and_sizes_are_fixed():
    assert "leave out --optimizers" in refused("figure", "noise", "--optimizers", "adam")
    assert "noise has its own sizes" in refused("figure", "noise", "--scale", "paper")
