# llmrl_jax on an NVIDIA GPU. The driver must be 580 or newer on the host, with the NVIDIA container toolkit.
#   docker build -t llmrl_jax .
#   mkdir -p runs && chmod 777 runs    # the container's user, 1000, writes there
#   docker run --rm --gpus all -v "$PWD/runs:/home/llmrl/runs" llmrl_jax glam demo
# For a CPU: docker build --build-arg EXTRAS=all -t llmrl_jax .
FROM python:3.11-slim

ARG EXTRAS=cuda13,all

# git: a run records the commit of a checkout; libosmesa6: MuJoCo's pictures without a screen
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends git libosmesa6 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 llmrl

COPY . /opt/llmrl_jax
# jax's packages bring CUDA, cuDNN and NCCL, so that no CUDA image is needed
RUN pip install --no-cache-dir -c /opt/llmrl_jax/constraints.txt "/opt/llmrl_jax[${EXTRAS}]"

USER 1000
WORKDIR /home/llmrl
ENV MUJOCO_GL=osmesa
ENTRYPOINT ["llmrl"]
CMD ["doctor"]
