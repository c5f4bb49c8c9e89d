"""Data: real counts, refused files, and a strict parser."""

import gzip
import hashlib
import http.server
import os
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaqn.experiments.data import files
from adaqn.experiments.data.digits import load_digits, read_idx
from adaqn.experiments.data.text import character_corpus, sequences, word_corpus
from adaqn.experiments.errors import UserError

real_data = pytest.mark.skipif("ADAQN_DATA" not in os.environ, reason="set ADAQN_DATA to check the paper's real data")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.delenv("ADAQN_DATA", raising=False)
    monkeypatch.setattr(files, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def server():
    """Serves whatever is in ``content``, on the loopback address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        content = b""

        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(self.content)))
            self.end_headers()
            self.wfile.write(self.content)

        def log_message(self, *args):
            pass

    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield Handler, f"http://127.0.0.1:{listening.server_port}/file.txt"
    listening.shutdown()
    listening.server_close()


def test_a_download_is_checked_and_kept(server, cache):
    handler, url = server
    handler.content = b"a text"
    file = files.DataFile("file.txt", hashlib.sha256(b"a text").hexdigest(), url)
    assert files.read(file) == b"a text"
    handler.content = b"changed on the server"
    assert files.read(file) == b"a text", "what is in the cache is not fetched again"
    assert [path.name for path in cache.iterdir()] == ["file.txt"]


def test_a_wrong_checksum_is_refused_and_left_for_inspection(server, cache):
    handler, url = server
    handler.content = b"something else"
    file = files.DataFile("file.txt", "0" * 64, url)
    with pytest.raises(UserError, match="refused, and left at"):
        files.read(file)
    assert (cache / "file.txt.refused").read_bytes() == b"something else"
    assert not (cache / "file.txt").exists()


def test_a_damaged_file_in_the_folder_is_refused_and_left(tmp_path, cache):
    (tmp_path / "nietzsche.txt").write_bytes(b"not Nietzsche")
    with pytest.raises(UserError, match=r"is not the expected file.*left in place"):
        character_corpus("nietzsche", tmp_path)
    assert (tmp_path / "nietzsche.txt").read_bytes() == b"not Nietzsche"


def test_offline_it_says_which_file_to_put_where(cache):
    file = files.DataFile("some.txt", "0" * 64, "http://127.0.0.1:9/some.txt")
    with pytest.raises(UserError, match=r"Offline\? Put the file at .*some\.txt.*ADAQN_DATA or --data-dir"):
        files.read(file)


@pytest.mark.parametrize(
    "content, message",
    [(b"\xff\xfe\x00", "not UTF-8"), (b"", "is empty")],
    ids=["not-utf8", "empty"],
)
def test_a_text_that_cannot_be_used_is_one_error(tmp_path, content, message):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        character_corpus(str(path))


def test_a_text_that_is_not_there_is_one_error():
    with pytest.raises(UserError, match="no text called 'moby-dick': give one of embedded, dickens"):
        character_corpus("moby-dick")


def test_a_text_shorter_than_a_sequence_is_one_error(tmp_path):
    with pytest.raises(UserError, match="has 3 symbols, fewer than one sequence of 50"):
        sequences(torch.arange(3), 50, "short.txt")


def test_the_embedded_text_has_its_splits():
    corpus = character_corpus("embedded")
    assert corpus.symbols > 300_000
    sizes = [len(corpus.splits[split]) / corpus.symbols for split in ("train", "valid", "test")]
    assert sizes == pytest.approx([0.9, 0.05, 0.05], abs=1e-3)
    words = word_corpus("embedded")
    assert len(words.vocabulary) <= 10_000
    assert "<eos>" in words.vocabulary


def test_targets_are_the_next_symbols():
    x, y = sequences(torch.arange(11), 5, "numbers")
    assert x.tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert y.tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]


@real_data
def test_the_papers_counts():
    """792 k and 600 k characters, 929 k words, 10 k words in the vocabulary."""
    raw = files.read(files.DATA_SETS["dickens"][0])
    assert len(raw) == 792_985
    dickens, nietzsche = character_corpus("dickens"), character_corpus("nietzsche")
    assert (dickens.symbols, len(dickens.vocabulary)) == (757_220, 72)
    assert (nietzsche.symbols, len(nietzsche.vocabulary)) == (600_893, 84)
    ptb = word_corpus("ptb")
    assert [len(ptb.splits[split]) for split in ("train", "valid", "test")] == [929_589, 73_760, 82_430]
    assert len(ptb.vocabulary) == 10_000


@real_data
def test_mnist_is_mnist():
    digits = load_digits("mnist")
    assert [len(digits.splits[split][0]) for split in ("train", "valid", "test")] == [55_000, 5_000, 10_000]
    pixels = torch.cat([digits.splits["train"][0], digits.splits["valid"][0]])
    assert float(pixels.mean()) == pytest.approx(0.1307, abs=1e-4)
    assert float(pixels.std()) == pytest.approx(0.3081, abs=1e-4)
    assert torch.bincount(digits.splits["test"][1]).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert load_digits("mnist", side=14).splits["test"][0].shape == (10_000, 14, 14)


def idx(shape, payload, magic=8):
    return bytes([0, 0, magic, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape) + payload


def test_idx_reads_what_is_written():
    data = bytes(range(12))
    assert read_idx(idx((2, 2, 3), data), 3).flatten().tolist() == list(data)
    assert read_idx(gzip.compress(idx((12,), data)), 1).tolist() == list(data)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\x00\x08",
        idx((4,), b"abc"),
        idx((2,), b"abc"),
        idx((4,), b"abcd", magic=13),
        idx((2**32 - 1, 2**32 - 1, 2**32 - 1), b"abcd"),
        idx((0,), b""),
        gzip.compress(idx((4,), b"abcd"))[:-9],
        b"\x1f\x8b garbage",
    ],
    ids=["empty", "header", "short", "long", "magic", "huge", "none", "gzip-cut", "gzip-garbage"],
)
def test_idx_refuses_what_is_not_right(content):
    with pytest.raises(UserError):
        read_idx(content, content[3] if len(content) > 3 and content[:2] == b"\0\0" else 1)


@pytest.mark.parametrize("behind", [gzip.compress(b"more"), b"x", b"\0" * 9], ids=["member", "byte", "zeros"])
def test_a_gzip_file_with_something_behind_its_end_is_refused(behind):
    """The rest would be ignored: readers differ in what such a file holds."""
    packed = gzip.compress(idx((4,), b"abcd"))
    assert read_idx(packed, 1).tolist() == list(b"abcd")
    with pytest.raises(UserError, match=f"has {len(behind)} bytes after the end of its gzip stream: refused"):
        read_idx(packed + behind, 1)


@given(st.binary(max_size=64), st.integers(1, 3))
def test_idx_never_fails_in_another_way(content, dimensions):
    """Any bytes: a tensor of exactly those bytes, or one clear error."""
    for data in (content, bytes([0, 0, 8, dimensions]) + content):
        try:
            tensor = read_idx(data, dimensions)
        except UserError:
            continue
        assert tensor.numel() == len(data) - 4 - 4 * dimensions


@real_data
def test_a_limited_text_with_splits_of_its_own_is_shared_out_as_where_we_split():
    corpus = word_corpus("ptb", limit=20_000, largest=500)
    assert {split: len(part) for split, part in corpus.splits.items()} == {
        "train": 18_000,
        "valid": 1_000,
        "test": 1_000,
    }
    assert len(corpus.vocabulary) <= 500


def test_the_checksum_of_words_knows_where_they_end(tmp_path):
    for name, text in (("one", "ab c "), ("two", "a bc ")):
        (tmp_path / name).write_text(text * 200)
    assert word_corpus(str(tmp_path / "one")).sha256 != word_corpus(str(tmp_path / "two")).sha256


@pytest.mark.parametrize("largest", [5, 20, 21, 22, 40])
def test_the_vocabulary_is_never_larger_than_asked_for(tmp_path, largest):
    words = [f"w{i % 20}" for i in range(900)] + [f"late{i}" for i in range(100)]
    (tmp_path / "text").write_text(" ".join(words))
    corpus = word_corpus(str(tmp_path / "text"), largest=largest)
    assert len(corpus.vocabulary) <= largest
    assert "<unk>" in corpus.vocabulary
