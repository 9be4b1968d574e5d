# asyncrl on NVIDIA GPUs, with the packages of requirements/gpu.lock, CUDA among them; the driver is the host's. From the
# repository:
#
#   git archive HEAD | docker build --file scripts/docker/gpu.Dockerfile --tag asyncrl:gpu -
FROM docker.io/library/debian:bookworm-slim

# The compiler and Python's headers are for what DeepSpeed, Triton and vLLM compile when they first start.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates g++ python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/asyncrl
ARG PIP_NO_CACHE_DIR=1
COPY requirements/gpu.lock requirements/gpu.lock
COPY scripts/install.sh scripts/install.sh
RUN scripts/install.sh gpu packages

COPY . source
RUN .venv/bin/pip install --no-deps --no-build-isolation ./source && rm -r source

# Which GPUs and which parts of the driver NVIDIA's container toolkit brings in.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
# The lock brings a compiler of CUDA, too, in .venv/lib/python3.11/site-packages/nvidia/cu13. It is not on the path: vLLM
# would then compile kernels of FlashInfer when it starts, which has never been tried with it.
ENV PATH=/opt/asyncrl/.venv/bin:$PATH
# Runs, caches and files of your own are in the current folder: mount one.
WORKDIR /work
ENTRYPOINT ["asyncrl"]
CMD ["--help"]
