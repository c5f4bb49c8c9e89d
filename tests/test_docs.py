"""Every Python block of the documentation runs, and every link inside the repository leads somewhere."""

import ast
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])


def blocks(page, language="python"):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def sources(*folders):
    files = sorted(file for folder in folders for file in (ROOT / "src" / "adaqn" / folder).glob("*.py"))
    return [file.read_text(encoding="utf-8") for file in files]


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
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", prose):
        assert (page.parent / target).exists(), target


def test_the_page_about_the_command_names_every_command_and_every_option():
    from typer.main import get_command

    from adaqn.experiments.commands.app import app

    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    missing = []
    for name, command in get_command(app).commands.items():
        missing += [] if f"`adaqn {name}`" in page else [name]
        for parameter in getattr(command, "commands", {"": command}).values():
            options = {option for p in parameter.params for option in p.opts if option.startswith("--")}
            missing += [f"{name} {o}" for o in options - {"--help"} if not re.search(rf"{o}(?![\w-])", page)]
    assert not missing


COMMANDS = [
    pytest.param(line, id=f"{page.name}:{number}")
    for page in PAGES
    for block in blocks(page, "(?:sh|bash)")
    for number, line in enumerate(block.splitlines())
    if re.search(r"(^|-m )adaqn ", line)
]


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_in_the_documentation_are_understood(line):
    from typer.main import get_command

    from adaqn.experiments.commands.app import app

    words = shlex.split(line, comments=True)
    command, rest = get_command(app), words[words.index("adaqn") + 1 :]
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    command.make_context("adaqn", rest)  # parses, and checks every value that has a type


def test_the_page_about_the_algorithm_quotes_code_that_is_there():
    reference, fast = "".join(sources(".")), "".join(sources("core", "optim", "parameters", "evaluation"))
    rows = re.findall(r"^\| \d+ \|.*$", (ROOT / "docs" / "algorithm.md").read_text(encoding="utf-8"), flags=re.M)
    assert len(rows) == 31
    for row in rows:
        printed, here = re.findall(r"`([^`]+)`", row.replace("\\|", "|"))[:2]
        assert printed in reference, row
        assert here in fast, row


def test_the_messages_on_the_troubleshooting_page_are_those_of_the_code():
    said = [
        node.value
        for source in sources("core", "optim", "parameters", "evaluation")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    rows = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8").splitlines()
    quoted = [found[1] for row in rows if (found := re.match(r"\| `([^`]* [^`]* [^`]*)` \|", row))]
    assert len(quoted) >= 5
    for piece in (piece.strip(" .:") for message in quoted for piece in message.split("...")):
        assert any(piece in message for message in said), piece


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tests_that_a_page_names_are_there(page):
    """A decision is held by a test: by its name, which must not go stale."""
    quoted = re.findall(r"`((?:tests/|test_)[^`\s]*)`", page.read_text(encoding="utf-8"))
    everywhere = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    for name in quoted:
        found = (ROOT / name).exists() if name.startswith("tests/") else f"def {name}(" in everywhere
        assert found, name


def test_every_decision_has_a_test():
    _, *decisions = re.split(r"^## (?=D\d+ )", (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8"), flags=re.M)
    assert len(decisions) >= 27
    assert [text.splitlines()[0] for text in decisions if not re.search(r"`(tests/|test_)", text)] == []
