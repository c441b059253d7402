# The package, built, in an environment with everything that examples/ needs:
#
#   docker build --platform linux/amd64 -t torch_mtia .
#   docker run --rm -it torch_mtia python examples/triton_softmax.py
FROM python:3.12-slim AS tools
# hadolint ignore=DL3008
RUN apt-get update \
  && apt-get install --yes --no-install-recommends g++ git make \
  && rm -rf /var/lib/apt/lists/*

# make demo ends by training a network and comparing it with the CPU: an image that is built works.
FROM tools
WORKDIR /torch_mtia
COPY . .
RUN make demo PIP_FLAGS=--no-cache-dir
ENV PATH=/torch_mtia/.venv/bin:$PATH
CMD ["bash"]
