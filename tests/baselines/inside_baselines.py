"""The only place where tests look at what the baselines keep to themselves."""


def sfo_state(opt):
    """Subspace, model and numbers of an SFO that has made a step."""
    return opt._state


def seen_by_layer(opt):
    """(A, G) by the name of the layer, ``None`` where no call was seen, as the next step of a KFAC would find them."""
    return {block.name: pair for block, pair in zip(opt.blocks, opt._recorder.collect(), strict=True)}


def recorder(opt):
    """What a KFAC hangs on its model."""
    return opt._recorder


def forward_hooks(model):
    return [hook for module in model.modules() for hook in module._forward_hooks.values()]


def in_forward_mode(opt):
    """Does a HessianFree still find J v in forward mode?"""
    return opt._forward_mode


def factors_of_curvlinops(operator, name):
    """(A, G) of a layer; it has no public name for them."""
    return operator._input_covariances[name], operator._gradient_covariances[name]
