"""Record what bitsandbytes makes of some weights into tests/data: `python tests/parity/record_lm_quantize.py`.

bitsandbytes is no extra of this project: install it beside torch, in an environment of its own, to record anew.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np


DATA = Path(__file__).parents[1] / "data"


def main() -> None:
    import bitsandbytes
    import torch
    from bitsandbytes import functional

    rng = np.random.default_rng(0)
    # Hugging Face's layout, [outputs, inputs]: half of the rows normal, half with heavy tails.
    weight = np.concatenate([rng.standard_normal((16, 192)), rng.standard_t(4, (16, 192))]).astype(np.float32) * 0.02
    packed, state = functional.quantize_4bit(torch.tensor(weight), blocksize=64, quant_type="nf4")
    np.savez_compressed(
        DATA / "lm_quantize.npz",
        weight=weight,
        packed=packed.numpy().reshape(32, 3, 32),
        absmax=state.absmax.numpy().reshape(32, 3),
        floats=functional.dequantize_4bit(packed, state).numpy(),
        levels=functional.get_4bit_type("nf4", device="cpu").numpy(),
        version=np.array(bitsandbytes.__version__),
    )


if __name__ == "__main__":
    main()
