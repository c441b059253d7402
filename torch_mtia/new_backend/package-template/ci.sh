#!/bin/sh
# What has to pass before a change: the build, the package's tests, the contract of the driver, the allocator, and
# ten tests of what a new device lacks most often. Results are in build/.
set -eu
cd "$(dirname "$0")"

python -m pip install --no-build-isolation --no-deps .
python -m pytest
driver=$(python -c 'import torch_@NAME@ as package; print(package.FOLDER / "driver.so")')
python -m torch_mtia.conformance --driver "$driver" --folder build/driver --report build/driver.html
python -m torch_mtia.conformance --device @NAME@ --ledger ledger.yaml --folder build/conformance \
  --suite allocator --suite device --suite errors --suite operators --suite tensor --test 'allocator/*' \
  --test tensor/views/transpose --test tensor/there_and_back/float32 --test tensor/creation/full \
  --test tensor/assignments/resized --test tensor/clones_and_fills/complex64 --test device/a_seed_repeats_numbers \
  --test device/a_stream_waits_for_another --test operators/forward/atan/float32 \
  --test operators/strides/nn.functional.avg_pool2d/float32 --test errors/values/gather \
  --json build/conformance.json --junit build/conformance.xml --report build/conformance.html
