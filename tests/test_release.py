"""What is released: packages that need torch alone, a version that follows its rules, a workflow that is ours."""

import importlib.metadata
import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import adaqn
from limits import LIMIT

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    # Without isolation, so that no network is needed: hatchling is what an isolated build would fetch.
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(dist):
    (path,) = dist.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_the_package_whole_and_nothing_else(wheel):
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    source = ROOT / "src"
    files = {str(p.relative_to(source)) for p in (source / "adaqn").rglob("*") if p.is_file() and p.suffix != ".pyc"}
    assert inside == files
    assert "adaqn/py.typed" in inside


def test_the_wheel_needs_torch_alone(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(wheel.read(name).decode())
    needed = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert needed == ["torch>=2.6"]
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["Version"] == adaqn.__version__


def test_the_sdist_holds_what_its_tests_and_documentation_need(dist):
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "Makefile", "constraints.txt", "mkdocs.yml")
    assert {*wanted, "src/adaqn/__init__.py", "tests/conftest.py", "docs/index.md", "examples/ddp.py"} <= names
    assert not [name for name in names if name.startswith((".venv", "runs", "site", "demo-output"))]


def with_requirements(name, found):
    """A distribution and all that it requires here."""
    if name not in found:
        found.add(name)
        for requirement in importlib.metadata.requires(name) or []:
            required = re.match(r"[\w.-]+", requirement)[0]
            try:
                importlib.metadata.distribution(required)
            except importlib.metadata.PackageNotFoundError:
                continue
            if "extra ==" not in requirement:
                with_requirements(required, found)
    return found


TRAIN = """
import sys, torch, adaqn
from adaqn import AdaQN, Monitor
model, loss = torch.nn.Linear(3, 1), torch.nn.MSELoss()
x, y = torch.randn(32, 3), torch.randn(32, 1)
opt = AdaQN(model.parameters(), monitor=Monitor(model, loss, (x, y)))
for _ in range(12):
    opt.zero_grad(); loss(model(x), y).backward(); opt.step()
import adaqn.baselines, adaqn.reference
assert not {"numpy", "matplotlib", "typer"} & set(sys.modules), "more than torch was imported"
print(adaqn.__file__, opt.stats.cycles)
"""


def test_the_wheel_works_where_there_is_torch_alone(wheel, tmp_path):
    installed, others = tmp_path / "installed", tmp_path / "others"
    wheel.extractall(installed)
    others.mkdir()
    for name in with_requirements("torch", set()):
        for file in importlib.metadata.files(name) or []:
            top = file.parts[0]
            target = Path(file.locate()).parents[len(file.parts) - 1] / top
            if not (others / top).exists() and top not in ("..", "__pycache__"):
                (others / top).symlink_to(target)
    assert not (others / "numpy").exists()
    code = f"import sys; sys.path[:0] = [{str(installed)!r}, {str(others)!r}]\n{TRAIN}"
    done = subprocess.run([sys.executable, "-I", "-S", "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(installed / "adaqn" / "__init__.py"), "2"]


def test_the_version_is_semantic_and_in_the_changelog():
    found = re.fullmatch(r"(\d+\.\d+\.\d+)(\.dev\d+)?", adaqn.__version__)
    assert found
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[([^\]]+)\]", changelog, flags=re.M)
    assert headings[0] == "Unreleased"
    assert (found[1] in headings) is (found[2] is None)  # between releases there is nothing to head yet
    assert f"version: {adaqn.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_workflow_runs_what_contributors_run():
    import yaml

    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "check.yml").read_text(encoding="utf-8"))
    jobs = workflow["jobs"]
    assert {"run": "make check"} in jobs["check"]["steps"]
    assert "make check" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert jobs["check"]["strategy"]["matrix"]["python"][0] == "3.10"
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^check: lint types docs test", makefile, flags=re.M)
