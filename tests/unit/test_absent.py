"""Targets of devices that are absent: their spelling, and the errors of what cannot be compiled for."""

import importlib.metadata

import jax
import pytest

from envs_jax import tracing
from llmrl_jax.parallel import absent
from llmrl_jax.parallel.absent import Target


@pytest.mark.parametrize(
    ("text", "platform", "size"),
    [
        ("v5e:2x4", "tpu", 8),
        ("v5p:4x4x4", "tpu", 64),
        (" V6E:4x4", "tpu", 16),
        ("h100:1", "gpu", 1),
        ("h200:16", "gpu", 16),
    ],
)
def test_a_target_is_a_kind_and_a_topology(text, platform, size):
    target = Target.parse(text)
    assert (target.facts.platform, target.size, str(target)) == (platform, size, text.strip().lower())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("v5q:2x4", "'v5q'.*'v5p'"),
        ("tpu", "v5e, v5p"),
        ("v5e", "v5e:4x4"),
        ("v5e:8", "v5e:4x4"),
        ("v5p:4x4", "v5p:4x4x4"),
        ("h100:2x4", "h100:8"),
        ("h100:0", "h100:8"),
        ("h100:12", "h100:16"),
        ("v5e:128x128", "4096"),
    ],
)
def test_another_spelling_is_refused_with_the_remedy(text, message):
    with pytest.raises(ValueError, match=message) as error:
        Target.parse(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("text", "extra"), [("v5e:2x4", "aot-tpu"), ("h100:1", "aot-cuda")])
def test_without_the_compiler_the_extra_is_named(monkeypatch, text, extra):
    monkeypatch.setattr(absent.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=f"`{extra}`"):
        Target.parse(text).devices()


@pytest.mark.parametrize("package", ["libtpu", "jax-cuda13-plugin"])
def test_a_compiler_of_another_version_is_refused(monkeypatch, package):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.1")
    with pytest.raises(ValueError, match=f"{package} 0.0.1"):
        absent._check_version(package, "aot-tpu")
    needed = {"libtpu": "0.0.42.1", "jax-cuda13-plugin": "0.10.2"}
    if jax.__version__ == "0.10.2":
        monkeypatch.setattr(importlib.metadata, "version", needed.get)
        absent._check_version(package, "aot-tpu")


def test_the_description_of_a_gpu_has_the_numbers_of_its_kind():
    text = Target.parse("h200:8")._description()
    assert "memory_bandwidth: 4800000000000" in text
    assert "device_memory_size: 150000000000" in text
    assert "$" not in text


@pytest.mark.slow
def test_the_context_changes_the_platform_and_turns_the_cache_off():
    cached = jax.config.jax_enable_compilation_cache
    with Target.parse("h100:1").context():
        assert tracing.platform() == "gpu"
        assert not jax.config.jax_enable_compilation_cache
    assert tracing.platform() == jax.default_backend()
    assert jax.config.jax_enable_compilation_cache == cached
