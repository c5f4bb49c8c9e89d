"""Which room may know which: what an import loads, and who imports whom."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

import adaqn
from limits import LIMIT

SOURCE = Path(adaqn.__file__).parent
HEAVY = (
    "adaqn.explain",
    "adaqn.experiments",
    "adaqn.baselines",
    "adaqn.integrations",
    "matplotlib",
    "plotly",
    "numpy",
    "torch.distributed.tensor",
    "torch._dynamo",
)


@functools.cache
def modules(room):
    """Name → syntax tree of every module of a room, or of one file."""
    files = sorted((SOURCE / room).rglob("*.py")) if (SOURCE / room).is_dir() else [SOURCE / room]
    return {str(file.relative_to(SOURCE)): ast.parse(file.read_text(encoding="utf-8")) for file in files}


def imported(tree):
    """The full names of all modules that one imports, wherever in it: ``from a import b`` is a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the room"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def in_room(name, *rooms):
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def loaded_by(program):
    code = f"{program}\nimport sys\nprint(*sorted(sys.modules))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_who_imports_adaqn_loads_no_prose_no_laboratory_and_no_modules_of_many_processes():
    bare = loaded_by("import torch")
    loaded = loaded_by("import adaqn") - bare  # torch itself may load some of them
    assert [name for name in HEAVY if name in loaded] == []
    assert "adaqn.optim.adaqn" in loaded


def test_the_prose_is_there_when_it_is_asked_for():
    program = "import adaqn, torch\nadaqn.AdaQN([torch.nn.Parameter(torch.ones(2))], reject='none').explain()"
    loaded = loaded_by(program)
    assert "adaqn.explain" in loaded
    assert "adaqn.experiments" not in loaded


@pytest.mark.parametrize("module", modules("core"))
def test_core_knows_torch_and_the_standard_library_alone(module):
    for name in imported(modules("core")[module]):
        root = name.partition(".")[0]
        assert root == "torch" or root in sys.stdlib_module_names or in_room(name, "adaqn.core"), name


ALLOWED = {
    "evaluation": ("adaqn.core", "adaqn.evaluation"),
    "parameters": ("adaqn.core", "adaqn.evaluation", "adaqn.parameters"),
}


@pytest.mark.parametrize("room", ALLOWED)
def test_the_rooms_below_the_optimizer_do_not_know_it(room):
    for module, tree in modules(room).items():
        for name in imported(tree):
            assert not in_room(name, "adaqn") or in_room(name, *ALLOWED[room]), (module, name)


OPEN = ("adaqn.optim.monitor", "adaqn.optim.events", "adaqn.optim.curvatures")
"""What ``adaqn`` exports from there, beside the optimizers."""


def test_baselines_know_no_internals_of_the_optimizer():
    for module, tree in modules("baselines").items():
        for name in imported(tree):
            if in_room(name, "adaqn.optim") and name != "adaqn.optim":
                assert in_room(name, *OPEN), (module, name)
                assert not name.rpartition(".")[2].startswith("_"), (module, name)


WHOLE_GRADIENTS_KNOW = (
    "adaqn.core",
    "adaqn.evaluation",
    "adaqn.fullbatch",
    "adaqn.parameters",
    "adaqn.optim.events",
    "adaqn.optim.method",
    "adaqn.optim.settings",
    "adaqn.optim.torch_arguments",
)


def test_whole_gradients_share_the_parts_and_not_the_loop_of_the_others():
    for module, tree in modules("fullbatch").items():
        for name in imported(tree):
            prose = module == "fullbatch/optimizer.py" and in_room(name, "adaqn.explain")  # within explain() alone
            assert not in_room(name, "adaqn") or in_room(name, *WHOLE_GRADIENTS_KNOW) or prose, (module, name)
    for room in ("optim", "core", "evaluation", "parameters", "baselines"):
        for module, tree in modules(room).items():
            assert not [name for name in imported(tree) if in_room(name, "adaqn.fullbatch")], module


def test_only_the_command_knows_the_laboratory():
    rooms = ("core", "evaluation", "parameters", "optim", "fullbatch", "explain", "baselines", "integrations")
    for room in (*rooms, "reference.py"):
        for module, tree in modules(room).items():
            assert not [name for name in imported(tree) if in_room(name, "adaqn.experiments")], module
    assert not [name for name in imported(modules("__init__.py")["__init__.py"]) if in_room(name, "adaqn.experiments")]


def test_prose_is_imported_by_explain_alone():
    """And only within it: the optimizer works without."""
    for module, tree in {**modules("optim"), **modules("fullbatch")}.items():
        top_level = ast.Module([node for node in tree.body if not isinstance(node, ast.If)], [])  # TYPE_CHECKING
        outside = [node for node in top_level.body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert not [name for name in imported(ast.Module(outside, [])) if in_room(name, "adaqn.explain")], module


@pytest.mark.parametrize("name", ["AdaQN", "OLBFGS", "RES", "SdLBFGS", "SQN"])
def test_a_method_is_one_class_above_the_common_one(name):
    kind = getattr(adaqn, name)
    assert [c.__name__ for c in kind.__mro__] == [name, "QuasiNewton", "Optimizer", "object"]


@pytest.mark.parametrize("name", ["LBFGS", "BFGS"])
def test_so_is_one_for_whole_gradients(name):
    kind = getattr(adaqn, name)
    assert [c.__name__ for c in kind.__mro__] == [name, "WholeGradient", "Optimizer", "object"]


def test_tests_mirror_the_source():
    """A folder of tests for every room; no test of a room lies elsewhere."""
    rooms = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    tests = Path(__file__).parent
    folders = {path.name for path in tests.iterdir() if any(path.rglob("test_*.py"))}
    assert rooms - folders == set()
    assert folders - rooms == {"distributed", "fuzz"}  # real processes, and drawn cases, whatever room they exercise


def test_private_members_of_an_optimizer_are_touched_in_one_place():
    tests = Path(__file__).parent
    names = {"_state", "_method", "_watch", "_recent", "_memory", "_anchor_losses", "_notices"}
    touched = {
        f"{file.name}:{node.lineno}"
        for file in tests.rglob("*.py")
        if file.name != "inside.py" and file.parent.name != "baselines"  # these are no quasi-Newton optimizers
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in names
    }
    assert touched == set()
