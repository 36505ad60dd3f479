"""Fine-tuning beside peft and torch: the same model, adapters, rows and optimiser give the same losses and weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax import lm
from llmrl_jax.tuning import SFTConfig, make_sft, pack
from llmrl_jax.tuning.rows import Example
from llmrl_jax.tuning.sft import learning_rates


pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning"),
]  # peft's own
torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

UPDATES, ROWS, WIDTH = 25, 8, 24
CONFIG = lm.LlamaConfig(60, 32, 48, 3, 4, 2, max_position_embeddings=32, eos_token_id=1)
HOW = SFTConfig(
    batch_size=ROWS, microbatches=2, learning_rate=5e-3, warmup=0.2, weight_decay=0.01, max_grad_norm=0.5, adam_b2=0.99
)


def rows():
    """Prompts that are read and answers that are learnt, of many lengths, one to a row."""
    rng = np.random.default_rng(4)
    for _ in range(ROWS):
        head, tail = rng.integers(2, 9), rng.integers(1, 14)
        tokens = rng.integers(2, 60, head + tail).tolist()
        yield Example(tokens, [i >= head for i in range(len(tokens))])


def theirs(model, data):
    """Losses of torch's loop on the same rows, and the model."""
    model.train()
    learnt = [p for p in model.parameters() if p.requires_grad]
    matrices, rest = [p for p in learnt if p.ndim > 1], [p for p in learnt if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": HOW.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(HOW.adam_b1, HOW.adam_b2), eps=HOW.adam_eps)
    rate = learning_rates(HOW, UPDATES)
    tokens = torch.tensor(np.asarray(data.tokens)).long()
    seen = torch.tensor(np.asarray(data.segments) > 0).long()
    labels = torch.where(torch.tensor(np.asarray(data.learn)), tokens, -100)
    losses = []
    for update in range(UPDATES):
        for group in optimizer.param_groups:
            group["lr"] = float(rate(update))
        optimizer.zero_grad()
        loss = model(input_ids=tokens, attention_mask=seen, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learnt, HOW.max_grad_norm)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("tune", ["lora", "full"])
def test_the_loss_curve_is_that_of_peft_and_torch(tmp_path, tune):
    plain = lm.Llama(CONFIG)
    params = jax.jit(plain.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]
    lm.save_hf(tmp_path / "model", CONFIG, params)
    data = pack(list(rows()), WIDTH, several=False)
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    variables = {"params": params}
    if tune == "lora":
        plain = lm.Llama(CONFIG, lora=lm.LoRAConfig(rank=4, alpha=8.0, targets=("q_proj", "v_proj", "down_proj")))
        adapters = jax.jit(plain.init)(jax.random.key(1), jnp.zeros((1, 1), jnp.int32))["lora"]
        variables["lora"] = adapters
        lm.save_adapter(tmp_path / "start", plain, variables, base=str(tmp_path / "model"))
        model = peft.PeftModel.from_pretrained(model, tmp_path / "start", is_trainable=True)
    want = theirs(model, data)

    learner = make_sft(HOW, plain, variables, data, UPDATES)
    state, metrics = jax.jit(lambda s: jax.lax.scan(lambda s, _: learner.update(s), s, None, UPDATES))(
        learner.init(jax.random.key(2))
    )
    np.testing.assert_allclose(metrics["loss"], want, rtol=2e-4)
    assert want[-1] < (0.98 if tune == "lora" else 0.6) * want[0]

    if tune == "full":
        model.save_pretrained(tmp_path / "theirs")
        _, after = lm.load(tmp_path / "theirs")
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-3), after["params"], state.params)
    else:
        model.save_pretrained(tmp_path / "theirs")
        _, after = lm.load_adapter(tmp_path / "theirs", lm.Llama(CONFIG), {"params": params})
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-3), after["lora"], state.params)
