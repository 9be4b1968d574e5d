# asyncrl on CPUs, with the packages of requirements/cpu.lock. From the repository:
#
#   git archive HEAD | docker build --file scripts/docker/cpu.Dockerfile --tag asyncrl:cpu -
FROM docker.io/library/debian:bookworm-slim

# The compiler and Python's headers are for the small op that DeepSpeed compiles when a trainer first starts, libnuma for
# vLLM's CPU build.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates g++ libnuma1 python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/asyncrl
# An index that serves the CPU builds of torch.
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
ARG PIP_NO_CACHE_DIR=1
COPY requirements/cpu.lock requirements/cpu.lock
COPY scripts/install.sh scripts/install.sh
RUN scripts/install.sh cpu packages

COPY . source
RUN .venv/bin/pip install --no-deps --no-build-isolation ./source && rm -r source

ENV PATH=/opt/asyncrl/.venv/bin:$PATH
# Runs, caches and files of your own are in the current folder: mount one.
WORKDIR /work
ENTRYPOINT ["asyncrl"]
CMD ["--help"]
