# vLLM's own image with Moonpool's client in it: MoonpoolConnector, and no other change.
#
#   docker build -f deploy/image/vllm.Dockerfile -t moonpool-vllm .
#
# What the client brings is held to the versions that vLLM has: pip is told of all of them.
ARG BASE=docker.io/vllm/vllm-openai:v0.32.0

# hadolint ignore=DL3006
FROM ${BASE}
WORKDIR /src
COPY . .
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m pip list --format=freeze --exclude-editable > /tmp/brought.txt \
    && python3 -m pip install -c /tmp/brought.txt . \
    && rm -rf /src/* /tmp/brought.txt \
    && mkdir -p /var/cache/moonpool && chown 10001:10001 /var/cache/moonpool
ENV HOME=/var/cache/moonpool NUMBA_CACHE_DIR=/var/cache/moonpool
USER 10001:10001
