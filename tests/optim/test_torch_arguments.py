"""A line of Adam's that was changed in its first word alone: every left-over is said, and what takes its place."""

import pytest
import torch
from torch import nn

import adaqn
from adaqn import BFGS, LBFGS, OLBFGS, RES, AdaQN, SdLBFGS

SWITCHES = ("foreach", "fused", "amsgrad", "capturable", "differentiable", "centered", "decoupled_weight_decay")
WITHOUT_AVERAGES = (OLBFGS, RES, SdLBFGS, LBFGS, BFGS)


def parameter():
    return [nn.Parameter(torch.ones(3, 2))]


def advised(message):
    """The arguments that a message tells one to write."""
    words = message.partition(" is ")[2].partition(", or leave")[0]
    return eval(f"dict({words})", {"adaqn": adaqn})


@pytest.mark.parametrize(
    "options, kind",
    [({}, adaqn.Kronecker), ({"preset": "modern"}, adaqn.Adam), ({"scaling": "rmsprop"}, adaqn.RMSProp)],
)
def test_betas_and_eps_have_an_equivalent_and_that_works(options, kind):
    with pytest.raises(
        TypeError, match="AdaQN has no argument 'betas', 'eps': the equivalent of betas, eps is"
    ) as told:
        AdaQN(parameter(), betas=(0.8, 0.98), eps=1e-6, **options)
    found = advised(str(told.value))
    assert type(found["scaling"]) is kind
    opt = AdaQN(parameter(), **{**options, **found})
    assert (opt.defaults["momentum"], opt.scaling.decay, opt.scaling.eps) == (0.8, 0.98, 1e-6)


def test_an_h0_without_decay_is_not_told_to_have_one():
    with pytest.raises(TypeError, match=r"momentum=0\.9, scaling=adaqn\.Adam\(decay=0\.999\)"):
        AdaQN(parameter(), preset="paper", betas=(0.9, 0.999))
    with pytest.raises(TypeError, match=r"scaling=adaqn\.Adagrad\(eps=1e-08\)"):
        AdaQN(parameter(), preset="paper", eps=1e-8)
    with pytest.raises(TypeError, match=r"scaling=adaqn\.RMSProp\(decay=0\.9\)"):
        AdaQN(parameter(), scaling="rmsprop", alpha=0.9)


def test_betas_that_are_no_pair():
    with pytest.raises(TypeError, match=r"momentum=β1, scaling=adaqn\.Kronecker\(decay=β2\)"):
        AdaQN(parameter(), betas=0.9)


@pytest.mark.parametrize("kind", [AdaQN, *WITHOUT_AVERAGES], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", SWITCHES)
def test_switches_are_to_be_left_out(kind, name):
    with pytest.raises(TypeError, match=f"{kind.__name__} has no argument '{name}': leave out {name}: "):
        kind(parameter(), **{name: False})


def test_several_at_once_and_unknown_ones_beside_them():
    with pytest.raises(
        TypeError, match=r"'betas', 'fused', 'colour': .*equivalent of betas.*; leave out fused"
    ) as told:
        AdaQN(parameter(), betas=(0.9, 0.95), fused=True, colour="red")
    assert "leave out colour" not in str(told.value)
    with pytest.raises(TypeError, match=r"'fused', 'memory_size': write pairs=.*; leave out fused"):
        AdaQN(parameter(), fused=True, memory_size=3)


@pytest.mark.parametrize("name", ["warmup_steps", "warmup", "num_warmup_steps"])
def test_a_warm_up_of_schedule_free_optimizers_is_ours(name):
    with pytest.raises(TypeError, match=f"no argument '{name}': write warm_up=100"):
        AdaQN(parameter(), **{name: 100})


@pytest.mark.parametrize("kind", WITHOUT_AVERAGES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name, value", [("betas", (0.9, 0.999)), ("eps", 1e-8), ("momentum", 0.9), ("nesterov", True)])
def test_methods_without_averages_say_so(kind, name, value):
    with pytest.raises(TypeError, match=f"has no argument '{name}': leave out {name}: it averages no gradients"):
        kind(parameter(), **{name: value})


@pytest.mark.parametrize("kind", [LBFGS, BFGS], ids=lambda kind: kind.__name__)
def test_weight_decay_of_whole_gradients_belongs_into_the_loss(kind):
    with pytest.raises(TypeError, match=r"weight_decay.*to the loss in the closure"):
        kind(parameter(), weight_decay=0.01)
    with pytest.raises(ValueError, match=r"'weight_decay' in a param group.*to the loss in the closure"):
        kind([{"params": parameter(), "weight_decay": 0.01}])
    kind([{"params": parameter(), "weight_decay": 0.0}])  # as frameworks write it


@pytest.mark.parametrize("kind", [AdaQN, *WITHOUT_AVERAGES], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "given",
    [{"betas": (0.9, 0.95)}, {"eps": 1e-6}, {"fused": True}, {"amsgrad": False}],
    ids=lambda given: next(iter(given)),
)
def test_in_a_group_too(kind, given):
    (name,) = given
    with pytest.raises(ValueError, match=rf"'{name}' in a param group would change nothing: "):
        kind([{"params": parameter(), **given}])
    opt = kind(parameter())
    with pytest.raises(ValueError, match=f"'{name}'"):
        opt.add_param_group({"params": parameter(), **given})
    assert len(opt.param_groups) == 1


def test_the_equivalent_in_a_group_names_the_h0_in_use():
    with pytest.raises(ValueError, match=r"momentum=0\.9, scaling=adaqn\.Adam\(decay=0\.95\).*scaling is given to the"):
        AdaQN([{"params": parameter(), "betas": (0.9, 0.95)}], preset="modern")
    AdaQN([{"params": parameter(), "momentum": 0.9, "name": "head"}])  # notes of the user's stay


# ---------------------------------------------------------------------- by position, by other names, and SOAP's


def test_betas_by_position_have_an_equivalent_and_that_works():
    with pytest.raises(TypeError, match=r"got \(0\.8, 0\.98\) as third argument: in Adam that is betas") as told:
        AdaQN(parameter(), 1e-3, (0.8, 0.98))
    opt = AdaQN(parameter(), 1e-3, **advised(str(told.value).partition("betas; ")[2]))
    assert (opt.defaults["momentum"], opt.scaling.decay) == (0.8, 0.98)


@pytest.mark.parametrize(
    "third, message",
    [
        (((0.9, 0.95), 1e-6, 0.1), r"Kronecker\(decay=0\.95, eps=1e-06\).*write weight_decay=0\.1"),
        ((0.9,), r"in SGD that is momentum: write momentum=0\.9"),
        ((lambda: 1.0,), "got function as third argument: write monitor="),
        (("paper",), "'paper' as third argument: write its name before it"),
    ],
    ids=["adam", "sgd", "monitor", "preset"],
)
def test_a_third_argument_by_position_is_one_error(third, message):
    with pytest.raises(TypeError, match=message):
        AdaQN(parameter(), 1e-3, *third)


@pytest.mark.parametrize(
    "kind, given, message",
    [
        (AdaQN, {"learning_rate": 0.1}, r"has no argument 'learning_rate': write lr=0\.1$"),
        (AdaQN, {"beta1": 0.9}, r"write momentum=0\.9$"),
        (AdaQN, {"weight_deacy": 0.1}, r"write weight_decay=0\.1$"),
        (AdaQN, {"beta2": 0.95}, r"scaling=adaqn\.Kronecker\(decay=0\.95\)"),
        (OLBFGS, {"learning_rate": 0.1}, r"write lr=0\.1$"),
        (LBFGS, {"learning_rate": 0.1}, r"write lr=0\.1$"),
        (OLBFGS, {"beta1": 0.9}, "has no argument 'beta1'$"),
    ],
)
def test_other_names_of_ours_are_told_as_in_a_group(kind, given, message):
    with pytest.raises(TypeError, match=message):
        kind(parameter(), **given)


@pytest.mark.parametrize("preset", ["default", "modern"])
def test_the_refreshments_of_soap_have_an_equivalent_and_that_works(preset):
    with pytest.raises(TypeError, match="the equivalent of precondition_frequency is") as told:
        AdaQN(parameter(), preset=preset, precondition_frequency=7)
    opt = AdaQN(parameter(), preset=preset, **advised(str(told.value)))
    assert opt.scaling.refresh == 7


@pytest.mark.parametrize("kind", [AdaQN, *WITHOUT_AVERAGES], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "name", ["precondition_frequency", "shampoo_beta", "max_precond_dim", "merge_dims", "rho", "beta2", "correct_bias"]
)
def test_names_of_soap_and_of_adams_relatives_are_refused_in_a_group_too(kind, name):
    with pytest.raises(ValueError, match=rf"'{name}' in a param group would change nothing: "):
        kind([{"params": parameter(), name: 0.5}])
    with pytest.raises(TypeError, match=f"has no argument '{name}': (leave out|the equivalent of) {name}"):
        kind(parameter(), **{name: 0.5})


def test_the_groups_of_sharpness_aware_minimization_pass():
    """Such a wrapper hands its own groups on to the optimizer inside."""
    opt = AdaQN([{"params": parameter(), "rho": 0.05, "adaptive": False}])
    opt.load_state_dict(opt.state_dict())
    assert opt.param_groups[0]["rho"] == 0.05


@pytest.mark.parametrize("name, value", [("maximize", True), ("scaling", "adam"), ("damping", 0.1), ("noise", 0.0)])
def test_what_is_for_all_parameters_is_refused_in_a_group_of_whole_gradients(name, value):
    with pytest.raises(ValueError, match=f"{name} in a param group.*give it to the optimizer"):
        LBFGS([{"params": parameter(), name: value}])


# ---------------------------------------------------------------------- checkpoints


def state_of(kind, steps=1, **options):
    params = parameter()
    opt = kind(params, lr=0.01, **options)
    for _ in range(steps):
        params[0].grad = torch.ones(3, 2)
        opt.step()
    return opt.state_dict()


@pytest.mark.parametrize(
    "kind, options, ours, message",
    [
        (
            torch.optim.AdamW,
            {},
            {},
            r"Adam or AdamW.*warm_start\(state\).*scaling='adam' \(preset='modern'\).*Kronecker",
        ),
        (torch.optim.AdamW, {}, {"preset": "modern"}, r"Adam or AdamW.*opt\.warm_start\(state\)$"),
        (torch.optim.Adagrad, {}, {"preset": "paper"}, r"torch's Adagrad.*opt\.warm_start\(state\)$"),
        (torch.optim.RMSprop, {}, {}, r"torch's RMSprop.*That needs scaling='rmsprop'; with Kronecker"),
        (torch.optim.SGD, {"momentum": 0.9}, {}, "no second moments: load the weights alone"),
    ],
)
def test_a_checkpoint_of_torchs_points_to_warm_start(kind, options, ours, message):
    opt = AdaQN(parameter(), **ours)
    with pytest.raises(ValueError, match=message) as told:
        opt.load_state_dict(state_of(kind, **options))
    assert "curvature pairs" not in str(told.value)
    assert opt.defaults == {name: opt.param_groups[0][name] for name in opt.defaults}


def test_what_the_message_says_works():
    opt = AdaQN(parameter(), preset="modern")
    opt.warm_start(state_of(torch.optim.AdamW))
    assert opt.scaling.steps == [1]


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.RMSprop], ids=lambda kind: kind.__name__)
def test_a_checkpoint_from_before_the_first_step(kind):
    message = f"saved by torch's .*{kind.__name__}, not by this one, and before its first step: start without it"
    with pytest.raises(ValueError, match=message):
        AdaQN(parameter()).load_state_dict(state_of(kind, steps=0))


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize(
    "kind, whose",
    [
        (torch.optim.SGD, "torch's SGD"),
        (torch.optim.ASGD, "torch's ASGD"),
        (torch.optim.Rprop, "torch's Rprop"),
        (torch.optim.Adafactor, "another optimizer"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_checkpoint_without_second_moments_is_said_to_be_another_optimizers(kind, whose, steps):
    message = f"saved by {whose}, not by this one, and has no second moments: load the weights alone"
    with pytest.raises(ValueError, match=message):
        AdaQN(parameter()).load_state_dict(state_of(kind, steps=steps))


@pytest.mark.parametrize("kind", [LBFGS, BFGS], ids=lambda kind: kind.__name__)
def test_whole_gradients_start_without_it(kind):
    with pytest.raises(ValueError, match=r"another optimizer of torch's.*start without it"):
        kind(parameter()).load_state_dict(state_of(torch.optim.AdamW))
