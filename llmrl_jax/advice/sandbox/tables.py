"""The names that programs may use: functions, types, constants, methods, keywords, and the operations they may become.

Everything else is refused. A name is added here only if no argument of it takes a string, a function or a path.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


_JNP = """
abs absolute add all allclose amax amin any append arange arccos arcsin arctan arctan2 argmax argmin argsort argwhere
array array_equal asarray astype atleast_1d atleast_2d average bincount bitwise_and bitwise_not bitwise_or bitwise_xor
broadcast_to cbrt ceil clip column_stack concatenate cos cosh count_nonzero cross cumprod cumsum diff
divide dot dstack equal exp exp2 expand_dims expm1 eye fabs flip fliplr flipud floor floor_divide fmax fmin full
full_like greater greater_equal heaviside hstack hypot identity inner invert isclose isfinite isin isinf isnan
left_shift less less_equal linspace log log10 log1p log2 logaddexp logical_and logical_not logical_or logical_xor
matmul max maximum mean median min minimum mod moveaxis multiply nan_to_num nanmax nanmean nanmin nansum ndim negative
nonzero not_equal ones ones_like outer pad positive power prod ptp ravel reciprocal remainder repeat reshape
right_shift rint roll rot90 round select shape sign sin sinh size sort sqrt square squeeze stack std subtract sum
swapaxes take take_along_axis tan tanh tensordot tile trace transpose tril triu true_divide trunc unravel_index var
vdot vstack where zeros zeros_like
"""
_LAX = """
abs add bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp concatenate convert_element_type cummax cummin
cumprod cumsum div dynamic_index_in_dim dynamic_slice dynamic_slice_in_dim dynamic_update_slice eq exp expand_dims
floor ge gt integer_pow le log log1p logistic lt max min mul ne neg pow reciprocal rem reshape round rsqrt select sign
sqrt square stop_gradient sub tanh top_k
"""
_NN = (
    "elu gelu leaky_relu log_sigmoid log_softmax logsumexp one_hot relu relu6 sigmoid silu softmax softplus swish tanh"
)
_DTYPES = "bool_ float16 bfloat16 float32 int8 int16 int32 uint8 uint16 uint32"
_CONSTANTS = "pi e inf nan newaxis"

FUNCTIONS: dict[str, Any] = {
    **{f"jnp.{name}": getattr(jnp, name) for name in _JNP.split()},
    **{f"lax.{name}": getattr(lax, name) for name in _LAX.split()},
    **{f"nn.{name}": getattr(jax.nn, name) for name in _NN.split()},
    "jnp.linalg.norm": jnp.linalg.norm,
}
"""Functions of arrays, by the name that the gate gives them."""
DTYPES: dict[str, Any] = {f"jnp.{name}": getattr(jnp, name) for name in _DTYPES.split()}
"""Types, which may be called too."""
CONSTANTS: dict[str, Any] = {f"jnp.{name}": getattr(jnp, name) for name in _CONSTANTS.split()}
ROOTS = {"jnp": "jnp", "jax.numpy": "jnp", "lax": "lax", "jax.lax": "lax", "jax.nn": "nn"}
"""The names by which programs call the modules of which they may use functions."""

BUILTINS = frozenset(
    ("abs all any bool dict enumerate float int len list max min range reversed round sum tuple zip").split()
)
"""Functions of Python."""
VALUE_TYPES = {"bool": jnp.bool_, "float": jnp.float32, "int": jnp.int32}
"""Python's types where a type of array elements stands."""
SIZED = frozenset(
    ("arange linspace full ones zeros eye identity tile repeat pad broadcast_to one_hot bincount").split()
)
"""Functions whose integers are sizes."""

DATA = frozenset(("T", "at", "dtype", "ndim", "shape", "size"))
"""Attributes of arrays."""
METHODS = frozenset((
    "all any argmax argmin argsort astype clip cumprod cumsum diagonal dot flatten max mean min prod ptp ravel repeat "
    "reshape round sort squeeze std sum swapaxes take trace transpose var"
).split())  # fmt: skip
"""Methods of arrays."""
UPDATES = frozenset(("add", "divide", "get", "max", "min", "multiply", "set"))
"""Methods of `x.at[index]`."""
KEYWORDS = frozenset((
    "axis axes axis1 axis2 atol rtol equal_nan keepdims dtype initial where size fill_value num_classes min max a_min "
    "a_max decimals shift k offset num endpoint start stop step total_repeat_length repeats ddof weights nan posinf "
    "neginf length minlength n m x y a b c shape reps negative_slope alpha condition default N M fill_value "
    "pad_width constant_values num_segments axisa axisb axisc source destination descending start_index slice_size "
    "slice_sizes start_indices operand index keepdim new_dtype invert assume_unique indices x1 x2 arr array arrays"
).split())  # fmt: skip
"""Keyword arguments of these functions and methods."""

PRIMITIVES = frozenset((
    "abs add add_any and argmax argmin asin acos atan atan2 bitcast_convert_type broadcast_in_dim cbrt ceil clamp "
    "concatenate convert_element_type copy cos cosh cummax cummin cumprod cumsum cumlogsumexp custom_jvp_call "
    "custom_vjp_call div dot_general dynamic_slice dynamic_update_slice eq erf erfc exp exp2 expm1 floor gather ge gt "
    "integer_pow iota is_finite jit pjit closed_call le log log1p logistic lt max min mul ne neg nextafter not or pad "
    "pow population_count reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor "
    "reduce_precision rem "
    "reshape rev round rsqrt scatter scatter-add scatter-mul scatter-max scatter-min scatter_add scatter_mul "
    "scatter_max scatter_min select_and_gather_add select_n shift_left shift_right_arithmetic shift_right_logical sign "
    "sin sinh slice sort split sqrt square squeeze stack stop_gradient sub tan tanh tile top_k transpose unstack xor"
).split())  # fmt: skip
"""JAX's operations of a traced program: no loops whose end depends on data, no randomness, no callbacks."""

_STABLEHLO = """
abs add and atan2 bitcast_convert broadcast_in_dim case cbrt ceil clamp compare composite concatenate constant
convert cosine count_leading_zeros divide dot_general dynamic_broadcast_in_dim dynamic_gather dynamic_iota
dynamic_pad dynamic_reshape dynamic_slice dynamic_update_slice exponential exponential_minus_one floor gather
get_dimension_size iota is_finite log log_plus_one logistic maximum minimum multiply negate not or pad popcnt
power real_dynamic_slice reduce reduce_precision reduce_window remainder reshape return reverse
round_nearest_afz round_nearest_even rsqrt scatter select shift_left shift_right_arithmetic
shift_right_logical sign sine slice sort sqrt subtract tan tanh transpose xor
"""
OPERATIONS = frozenset(
    "builtin.module func.func func.call func.return chlo.erf chlo.erfc chlo.erf_inv chlo.square chlo.top_k".split()
    + [f"stablehlo.{name}" for name in _STABLEHLO.split()]
)  # fmt: skip
"""StableHLO's operations of an exported program."""
COMPOSITES = frozenset(("chlo.acos", "chlo.asin", "chlo.cosh", "chlo.sinh", "chlo.top_k"))
"""Names of its composite operations, whose definitions are in the module."""
ASSERTION = "shape_assertion"
"""The target of the one custom call of an exported program: jax.export's check that all batch sizes are equal."""
