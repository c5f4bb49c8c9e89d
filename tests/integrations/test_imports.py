"""``adaqn`` needs torch alone; an integration without its package says what to install."""

import subprocess
import sys

import pytest

PACKAGES = ("lightning", "pytorch_lightning", "accelerate", "transformers")


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_torch_alone_is_enough():
    blocked = "".join(f"sys.modules[{name!r}] = None; " for name in PACKAGES)
    done = run(f"import sys; {blocked}import adaqn, adaqn.integrations; print('fine')")
    assert done.stdout == "fine\n", done.stderr


@pytest.mark.parametrize("name", ["lightning", "transformers"])
def test_one_line_says_what_to_install(name):
    done = run(f"import sys; sys.modules[{name!r}] = None; import adaqn.integrations.{name}")
    assert done.returncode == 1
    expected = f"adaqn.integrations.{name} needs the package {name}: pip install 'adaqn[{name}]'"
    assert done.stderr.strip().endswith(expected)
    assert "During handling" not in done.stderr
