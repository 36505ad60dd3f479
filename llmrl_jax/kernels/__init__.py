"""Operations whose plain form is slow on some device. Each has its formula in a few lines, forms for the devices, and a
test in `tests/unit/kernels` that they agree; when a compiler no longer needs a form, it can be deleted.
"""
