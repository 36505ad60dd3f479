"""A server's counters, in Prometheus's text format, and its access log. Neither holds a prompt, an answer or a key."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from envs_jax.extras import missing
from llmrl_jax.serve.request import ApiError


if TYPE_CHECKING:
    from llmrl_jax.serve.engine import Engine

access = logging.getLogger("llmrl_jax.serve.access")

SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Upper limits of the histogram of durations."""
ROUTES = ("/health", "/metrics", "/v1/models", "/v1/completions", "/v1/chat/completions", "/v1/score")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def route_of(path: str) -> str:
    """The route of a path. Unknown paths share one name: they may hold anything, and as many as clients invent."""
    if path.startswith("/v1/models/"):
        return "/v1/models/{name}"
    return path if path in ROUTES else "other"


class Metrics:
    """The counters of one server, in a registry of its own. **Raises:** `ModuleNotFoundError` without
    `prometheus_client` (extra `serve`)."""

    def __init__(self, engine: Engine):
        import prometheus_client as client

        self._client, self._registry = client, client.CollectorRegistry()
        self._requests = client.Counter(
            "llmrl_requests", "Requests that were answered.", ["route", "status"], registry=self._registry
        )
        self._seconds = client.Histogram(
            "llmrl_request_seconds",
            "Seconds from a request's head to the end of its answer.",
            ["route"],
            buckets=SECONDS,
            registry=self._registry,
        )
        self._tokens = client.Counter(
            "llmrl_tokens", "Tokens of prompts and of answers.", ["kind"], registry=self._registry
        )
        gauges = {
            "llmrl_waiting": ("Prompts and scoring requests that wait.", lambda: engine.load[0]),
            "llmrl_running": ("Prompts and scoring requests on the device.", lambda: engine.load[1]),
            "llmrl_programs": ("Shapes of compiled programs that were used.", lambda: engine.programs.count),
        }
        for name, (text, value) in gauges.items():
            client.Gauge(name, text, registry=self._registry).set_function(value)

    def count(self, route: str, status: int, seconds: float, prompt: int, completion: int) -> None:
        """Count a request that has ended."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)
        self._tokens.labels("prompt").inc(prompt)
        self._tokens.labels("completion").inc(completion)

    def text(self) -> tuple[bytes, str]:
        """The page of all metrics, and its content type."""
        return self._client.generate_latest(self._registry), self._client.CONTENT_TYPE_LATEST


def make_metrics(engine: Engine) -> Metrics | None:
    """The metrics; None if the extra is missing."""
    try:
        return Metrics(engine)
    except ModuleNotFoundError:
        return None


def page(metrics: Metrics | None) -> tuple[bytes, str]:
    """The page of metrics. **Raises:** `ApiError` if the extra is missing."""
    if metrics is None:
        raise ApiError(str(missing("this page", "serve", "prometheus_client")), 501)
    return metrics.text()


def log_access(scope: Any, route: str, status: int, seconds: float) -> None:
    """A line of the access log: who, what, how it ended, how long it took, and tokens of prompt and answer."""
    client = scope.get("client") or ("-",)
    method = scope["method"] if scope["method"] in METHODS else "other"
    prompt, completion = scope.get("llmrl.tokens", (0, 0))
    access.info(
        "%s %s %s %s %d %.3f s, tokens %d + %d",
        scope.get("llmrl.request_id") or "-", client[0], method, route, status, seconds, prompt, completion,
    )  # fmt: skip
