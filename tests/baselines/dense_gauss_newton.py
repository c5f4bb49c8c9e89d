"""Jacobians and Gauss-Newton matrices as matrices, entry by entry."""

import torch


def dense_jacobian(tensor, params):
    rows = [torch.autograd.grad(t, params, retain_graph=True, allow_unused=True) for t in tensor.reshape(-1)]
    return torch.stack(
        [
            torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for p, g in zip(params, row, strict=True)])
            for row in rows
        ]
    )


def dense_gauss_newton(outputs, loss_fn, y, params):
    J = dense_jacobian(outputs, params)
    H = torch.autograd.functional.hessian(lambda out: loss_fn(out, y), outputs.detach())
    return J.T @ H.reshape(outputs.numel(), outputs.numel()) @ J


def split(v, params):
    return [piece.reshape(p.shape) for piece, p in zip(v.split([p.numel() for p in params]), params, strict=True)]


def joined(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])


def dense(product, params):
    """The matrix of a product, column by column."""
    n = sum(p.numel() for p in params)
    columns = [joined(product(split(e, params))) for e in torch.eye(n, dtype=torch.float64)]
    return torch.stack(columns, dim=1)
