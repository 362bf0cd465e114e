# An image of mhsh for TPU VMs and GKE, or with EXTRA=cuda for NVIDIA GPUs. launch/gke --build makes and pushes it.
# Usage: docker build --build-arg EXTRA=tpu --tag IMAGE .
# It runs as root: on a TPU VM a container reaches the chips with --privileged only (docs/usage.md).
ARG PYTHON=3.13
FROM python:${PYTHON}-slim
ARG EXTRA=tpu
WORKDIR /src
# What mhsh needs, as a layer of its own, made with an empty mhsh: changed code does not fetch it again.
COPY pyproject.toml constraints.txt ./
RUN mkdir configs mhsh \
    && touch LICENSE \
    && echo '__version__ = "0"' >mhsh/__init__.py \
    && pip install --no-cache-dir --constraint constraints.txt ".[${EXTRA},gcs]"
COPY LICENSE ./
COPY configs configs
COPY mhsh mhsh
RUN pip install --no-cache-dir --no-deps --force-reinstall .
# Output is seen when it is written, not when a buffer is full.
ENV PYTHONUNBUFFERED=1
WORKDIR /work
ENTRYPOINT ["mhsh"]
