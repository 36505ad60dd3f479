"""Optimised HLO of programs of a few lines, as a compiler writes it."""

LOOP = """HloModule jit_f, is_scheduled=true

%body (p: (s32[], f32[4,8], f32[8,16])) -> (s32[], f32[4,8], f32[8,16]) {
  %p = (s32[], f32[4,8]{1,0}, f32[8,16]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %x = f32[4,8]{1,0} get-tuple-element(%p), index=1
  %w = f32[8,16]{1,0} get-tuple-element(%p), index=2
  %dot.1 = f32[4,16]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="f/mul"}
  ROOT %out = (s32[], f32[4,8]{1,0}, f32[8,16]{1,0}) tuple(%next, %x, %w)
}

%condition (q: (s32[], f32[4,8], f32[8,16])) -> pred[] {
  %q = (s32[], f32[4,8]{1,0}, f32[8,16]{1,0}) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %limit = s32[] constant(3)
  ROOT %less = pred[] compare(%j, %limit), direction=LT
}

ENTRY %main (a: f32[4,8], b: f32[8,16]) -> (s32[], f32[4,8], f32[8,16]) {
  %a = f32[4,8]{1,0} parameter(0)
  %b = f32[8,16]{1,0} parameter(1)
  %zero = s32[] constant(0)
  %start = (s32[], f32[4,8]{1,0}, f32[8,16]{1,0}) tuple(%zero, %a, %b)
  ROOT %while.7 = (s32[], f32[4,8]{1,0}, f32[8,16]{1,0}) while(%start), condition=%condition, body=%body
}
"""

SLICES = """HloModule jit_g, is_scheduled=true

%sliced (p0: f32[10,4,8], p1: s32[], p2: f32[4,8]) -> f32[4,8] {
  %p0 = f32[10,4,8]{2,1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %p2 = f32[4,8]{1,0} parameter(2)
  %z = s32[] constant(0)
  %ds = f32[1,4,8]{2,1,0} dynamic-slice(%p0, %p1, %z, %z), dynamic_slice_sizes={1,4,8}
  %bc = f32[4,8]{1,0} bitcast(%ds)
  ROOT %sum = f32[4,8]{1,0} add(%bc, %p2)
}

%stored (r0: f32[10,4,8], r1: f32[1,4,8], r2: s32[]) -> f32[10,4,8] {
  %r0 = f32[10,4,8]{2,1,0} parameter(0)
  %r1 = f32[1,4,8]{2,1,0} parameter(1)
  %r2 = s32[] parameter(2)
  %z2 = s32[] constant(0)
  ROOT %dus = f32[10,4,8]{2,1,0} dynamic-update-slice(%r0, %r1, %r2, %z2, %z2)
}

ENTRY %main (a: f32[10,4,8], i: s32[], b: f32[4,8]) -> f32[10,4,8] {
  %a = f32[10,4,8]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %b = f32[4,8]{1,0:S(1)} parameter(2)
  %fusion.1 = f32[4,8]{1,0} fusion(%a, %i, %b), kind=kLoop, calls=%sliced, backend_config={"estimated_cycles":"700"}
  %up = f32[1,4,8]{2,1,0} bitcast(%fusion.1)
  ROOT %fusion.2 = f32[10,4,8]{2,1,0} fusion(%a, %up, %i), kind=kLoop, calls=%stored
}
"""

REST = """HloModule jit_h, is_scheduled=true

ENTRY %main (a: f32[16,8], k: f32[3,8,5]) -> f32[64,8] {
  %a = f32[16,8]{1,0} parameter(0)
  %k = f32[8,5]{1,0} parameter(1)
  %line = f32[2,7,8]{2,1,0} parameter(2)
  %taps = f32[3,8,5]{2,1,0} parameter(3)
  %ag = (f32[16,8]{1,0}, f32[64,8]{1,0}) all-gather-start(%a), channel_id=1, dimensions={0}
  %agd = f32[64,8]{1,0} all-gather-done(%ag)
  %again = f32[64,8]{1,0} all-gather(%a), channel_id=1, dimensions={0}
  %ar = f32[16,8]{1,0} all-reduce(%a), channel_id=2, to_apply=%sum
  %conv = f32[16,5]{1,0} convolution(%a, %k), dim_labels=bf_io->bf
  %conv2 = f32[2,7,5]{2,1,0} convolution(%line, %taps), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f
  %wide = f64[16]{0} custom-call(%a), custom_call_target="xla_ffi_python_gpu_callback"
  %gemm = (f32[16,5]{1,0}, s8[64]{0}) custom-call(%a, %k), custom_call_target="__cublas$gemm", GEMM
  ROOT %out = f32[64,8]{1,0} copy(%agd)
}
"""
_GEMM = 'backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}'
REST = REST.replace("GEMM", _GEMM)
