#!/bin/sh
# Installs what ci.sh needs. torch_mtia is on no package index: WHEELS is where its wheels are, a folder or the address
# of a page that links them. `make wheels` writes them to dist/ of torch_mtia's sources.
set -eu
cd "$(dirname "$0")"

python -m pip install --no-index --no-deps --find-links "${WHEELS:-wheels}" torch_mtia
# From the index of pip: PyTorch, and what the tests need.
python -m pip install "torch_mtia[conformance,triton]" "setuptools>=77" wheel ninja
