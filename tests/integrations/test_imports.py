"""``adaqn`` needs torch alone; an integration without its package says what to install."""

import subprocess
import sys

CODE = """
import sys
for name in ("lightning", "pytorch_lightning", "accelerate", "transformers"):
    sys.modules[name] = None
import adaqn, adaqn.integrations
for name in ("lightning", "transformers"):
    try:
        __import__(f"adaqn.integrations.{name}")
    except ModuleNotFoundError as error:
        print(error, error.__suppress_context__)
"""


def test_torch_alone_is_enough_and_one_line_says_what_to_install():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    expected = "adaqn.integrations.{0} needs the package {0}: pip install 'adaqn[{0}]' True"
    assert done.stdout.splitlines() == [expected.format(name) for name in ("lightning", "transformers")], done.stderr
