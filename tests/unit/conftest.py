"""Runs of these tests draw no learning curve unless a test takes `pictures`: it is half of what a tiny run costs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from llmrl_jax.run import loop


@pytest.fixture
def pictures():
    """Have runs draw their learning curves."""


@pytest.fixture(autouse=True)
def no_pictures(request, monkeypatch):
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr(loop, "plots", SimpleNamespace(learning_curve=lambda *args, **options: None))
