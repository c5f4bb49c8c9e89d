"""The transformer and the convolutional net: what they may look at, how they begin, what they can be asked for."""

from dataclasses import replace

import pytest
import torch
from laboratory import command, refused

from adaqn.experiments.problems.catalogue import make_task
from adaqn.experiments.problems.convolutional import Convolutional
from adaqn.experiments.problems.transformer import Transformer
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.memory import needed
from adaqn.experiments.training.opening import open_run

TEXT = RunConfig(model="transformer", layers=2, hidden=16, limit=12_000, steps=6, batch_size=8, length=12)
IMAGES = RunConfig(task="mlp", model="conv", hidden=4, batch_size=16, steps=6)


@pytest.fixture
def transformer():
    model = Transformer(layers=2, hidden=64, vocabulary=7, length=10)
    model.initialise(torch.Generator().manual_seed(0))
    for p in model.parameters():  # far from its first weights, where all outputs are nearly alike
        p.data += 0.2 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    return model.double()


def test_an_output_depends_on_nothing_behind_it(transformer):
    x = torch.randint(7, (2, 10), generator=torch.Generator().manual_seed(2))
    other = x.clone()
    other[:, 6:] = (other[:, 6:] + 1) % 7
    one, two = transformer(x)[0], transformer(other)[0]
    torch.testing.assert_close(one[:, :6], two[:, :6])
    assert not torch.isclose(one[:, 6:], two[:, 6:]).all(2).any()


def test_symbol_by_symbol_it_says_the_same_as_all_at_once(transformer):
    x = torch.randint(7, (3, 10), generator=torch.Generator().manual_seed(3))
    seen, found = None, []
    for part in x.split(1, dim=1):
        logits, seen = transformer(part, seen)
        found.append(logits)
    torch.testing.assert_close(torch.cat(found, dim=1), transformer(x)[0])
    longer, seen = transformer(x[:, :4], seen)  # as many as there are positions, the oldest forgotten
    torch.testing.assert_close(longer, transformer(torch.cat([x[:, 4:], x[:, :4]], dim=1))[0][:, -4:])


def test_attention_that_can_be_differentiated_twice_is_the_same(transformer):
    x = torch.randint(7, (2, 10), generator=torch.Generator().manual_seed(4))
    fast = transformer(x)[0]
    transformer.twice_differentiable = True
    slow = transformer(x)[0]
    torch.testing.assert_close(slow, fast)
    weight = transformer.blocks[0].queries.weight
    (first,) = torch.autograd.grad(slow.square().sum(), weight, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), weight)
    assert second.abs().max() > 0


def test_they_begin_as_usual():
    model = make_task(replace(TEXT, hidden=64).complete()).model()
    assert float(model.blocks[0].queries.weight.detach().std()) == pytest.approx(0.02, rel=0.1)
    assert float(model.blocks[1].narrowed.weight.detach().std()) == pytest.approx(0.01, rel=0.1)  # 0.02/√(2·2)
    assert torch.equal(model.norm.weight, torch.ones(64))
    conv = make_task(replace(IMAGES, hidden=32).complete()).model()
    assert float(conv.hidden[1].weight.detach().std()) == pytest.approx((2 / (9 * 32)) ** 0.5, rel=0.1)
    assert not conv.hidden[1].bias.any()


def test_a_convolution_moves_with_the_image():
    conv = Convolutional(layers=1, channels=3, side=8, outputs=2)
    conv.initialise(torch.Generator().manual_seed(0))
    image = torch.zeros(1, 8, 8)
    image[0, 3, 3] = 1.0
    maps = [torch.relu(conv.hidden[0](x[:, None])) for x in (image, image.roll(2, dims=2))]
    torch.testing.assert_close(maps[0].roll(2, dims=3), maps[1])


@pytest.mark.parametrize("base", [TEXT, IMAGES], ids=["transformer", "conv"])
@pytest.mark.parametrize("optimizer", ["adaqn", "sqn", "hf", "muon", "shampoo"])
def test_they_learn_with_methods_that_look_into_them(base, optimizer):
    options = {"cycle_length": 2} if optimizer == "sqn" else {}
    size = {"steps": 3, "batch_size": 128} if optimizer == "hf" else {"steps": 20}  # it minimises each batch by itself
    run = open_run(replace(base, optimizer=optimizer, options=options, **size))
    result = run.train()
    assert result["final"]["valid_loss"] < run.metrics[0]["valid_loss"] - 0.01


def test_what_they_cannot_do_is_one_line():
    small = ["--limit", 5000, "--hidden", 8, "--steps", 2]
    for words, message in (
        (["--model", "transformer", "--carry-state"], "a transformer has no hidden state"),
        (["--model", "transformer", "--spread", "std"], "first weights of its own"),
        (["--model", "transformer", "--optimizer", "kfac"], "is in no nn.Linear or nn.Embedding"),
        (["--model", "conv"], "no model called 'conv' for char-lm"),
        (["--task", "mlp", "--model", "transformer"], "no model called 'transformer' for mlp"),
        (["--task", "mlp", "--model", "conv", "--layers", 4], "8 × 8: layers must be at most 3, got 4"),
        (["--task", "fit", "--model", "conv"], "no model called 'conv' for fit"),
    ):
        told = refused("train", *(small if "fit" not in words else []), *words)
        assert message in " ".join(told.split()), told


def test_their_size_is_known_before_they_are_made():
    for config in (TEXT, IMAGES):
        run = open_run(config)
        assert 8 * sum(p.numel() for p in run.model.parameters()) * 0.3 < needed(run.config)
    assert "GB" in refused("train", "--model", "transformer", "--hidden", 10**7)
    assert "GB" in refused("train", "--task", "mlp", "--model", "conv", "--hidden", 10**7)


def test_text_is_drawn_from_a_transformer_beyond_its_length(tmp_path):
    words = ["--model", "transformer", "--hidden", 8, "--layers", 1, "--length", 8, "--limit", 5000, "--steps", 2]
    assert command("train", *words, "--out", tmp_path / "run").exit_code == 0
    done = command("sample", tmp_path / "run", "--count", 30, "--prompt", "a longer prompt")
    assert done.exit_code == 0, done.output
    assert len(done.output.rstrip("\n")) >= 30
    again = command("sample", tmp_path / "run", "--count", 30, "--prompt", "a longer prompt")
    assert again.output == done.output


def test_the_doctor_knows_them():
    done = command("doctor", "conv", "--threads", 1)
    assert done.exit_code == 0, done.output
    assert "conv:" in done.output
