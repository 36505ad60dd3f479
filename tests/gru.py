"""A GRU by PyTorch's equations, for tests."""

from __future__ import annotations

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru_by_hand(params, x):
    """PyTorch's equations, one position at a time."""
    w, b, u, c = (
        np.asarray(params[name], np.float64) for name in ("input_kernel", "input_bias", "state_kernel", "state_bias")
    )
    h = np.zeros(u.shape[0])
    n = len(h)
    for row in np.asarray(x, np.float64):
        given, own = row @ w + b, h @ u + c
        r, z = sigmoid(given[:n] + own[:n]), sigmoid(given[n : 2 * n] + own[n : 2 * n])
        h = (1 - z) * np.tanh(given[2 * n :] + r * own[2 * n :]) + z * h
    return h
