"""Every Python block of the documentation runs, and every link inside the repository leads somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def test_there_are_blocks_to_run():
    assert blocks(ROOT / "README.md")
    assert blocks(ROOT / "docs" / "index.md")


@pytest.mark.filterwarnings(
    "ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated",  # Lightning's own use
    "ignore:The 'train_dataloader' does not have many workers",
)
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_code_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for what they save
    namespace: dict[str, object] = {}
    for block in blocks(page):
        exec(compile(block, str(page.name), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_inside_the_repository_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_the_page_about_the_command_names_every_command_and_every_option():
    from typer.main import get_command

    from adaqn.experiments.commands import app

    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    missing = []
    for name, command in get_command(app).commands.items():
        missing += [] if f"`adaqn {name}`" in page else [name]
        for parameter in getattr(command, "commands", {"": command}).values():
            options = {option for p in parameter.params for option in p.opts if option.startswith("--")}
            missing += [f"{name} {o}" for o in options - {"--help"} if not re.search(rf"{o}(?![\w-])", page)]
    assert not missing
