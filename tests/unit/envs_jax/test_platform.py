"""The platform that programs are traced for."""

import jax
import pytest

from envs_jax import tracing


@pytest.mark.slow
def test_platform_is_the_targets_inside_the_context_and_the_devices_outside():
    present = tracing.platform()
    assert present == jax.default_backend()
    with tracing.tracing_for("tpu"):
        assert tracing.platform() == "tpu"
        with tracing.tracing_for("gpu"):
            assert tracing.platform() == "gpu"
        assert tracing.platform() == "tpu"
    with pytest.raises(KeyError), tracing.tracing_for("tpu"):
        raise KeyError
    assert tracing.platform() == present


def test_a_jitted_function_is_traced_again_for_the_target():
    function = jax.jit(lambda x: x + {"cpu": 1, "tpu": 2}[tracing.platform()])
    assert function(0) == 1
    with tracing.tracing_for("tpu"):
        assert function(0) == 2
    assert function(0) == 1
