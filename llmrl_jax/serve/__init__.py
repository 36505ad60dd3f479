"""Our own Llama as a chat model: in this process, and behind an OpenAI-compatible server.

starlette and uvicorn (extra `serve`) are imported only when a server is created.
"""

from llmrl_jax.serve.app import Limits, make_app
from llmrl_jax.serve.engine import Busy, Engine, Job, Stopping, Work
from llmrl_jax.serve.local import LocalLlama
from llmrl_jax.serve.request import ApiError, Ask, Sample, Sampling
from llmrl_jax.serve.sampler import Sampler
from llmrl_jax.serve.scorer import Scorer
from llmrl_jax.serve.served import Served
from llmrl_jax.serve.server import background, run


__all__ = [
    "ApiError",
    "Ask",
    "Busy",
    "Engine",
    "Job",
    "Limits",
    "LocalLlama",
    "Sample",
    "Sampler",
    "Sampling",
    "Scorer",
    "Served",
    "Stopping",
    "Work",
    "background",
    "make_app",
    "run",
]
