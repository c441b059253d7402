#!/bin/sh
# What has to pass before a change: the build, the tests, what the driver alone promises, and a slice of the conformance
# suite. Results are in build/.
set -eu
cd "$(dirname "$0")"

python -m pip install --no-build-isolation --no-deps .
python -m pytest
driver=$(python -c 'import torch_@NAME@ as package; print(package.FOLDER / "driver.so")')
python -m torch_mtia.conformance --driver "$driver" --folder build/driver
python -m torch_mtia.conformance --device @NAME@ --ledger ledger.yaml --folder build/conformance \
  --suite tensor --suite operators --shard "${SHARD:-1/100}" \
  --json build/conformance.json --junit build/conformance.xml --report build/conformance.html
