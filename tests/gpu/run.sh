#!/usr/bin/env bash
# The model on a GPU: builds cache/ and models/ alone, then parity of every family and kernel (test_parity.py),
# then speed beside transformers (speed.py). On a machine without a GPU the same on its CPU. Needs a C++ compiler,
# cmake, ninja, nvcc and a Python with torch, transformers, safetensors and pytest; no Boost.
#
# usage: tests/gpu/run.sh            MESHNET_PYTHON names the Python: default .venv, else python3
#        tests/gpu/run.sh prepare    before: gathers in build/gpu what such a machine may lack, headers and the tiny
#                                    models with their golden values (to be copied there with the sources)
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
OUT=$ROOT/build/gpu
cd "$ROOT"

default_python=python3
[[ -x .venv/bin/python ]] && default_python=$ROOT/.venv/bin/python
PYTHON=${MESHNET_PYTHON:-$default_python}
bin=$(dirname "$(command -v "$PYTHON")")
export PATH=$bin:$PATH # its cmake and ninja

if [[ ${1:-} == prepare ]]; then
  mkdir -p "$OUT/include"
  cp -r /usr/include/{nlohmann,spdlog,fmt} "$OUT/include/"
  "$PYTHON" tests/golden/make_golden.py tiny "$OUT/tiny"
  echo "ready: $OUT ($(du -sh "$OUT" | cut -f1))"
  exit
fi

torch=$("$PYTHON" -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parent)')
configure=(-S . -B "$OUT/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DMESHNET_MODELS_ONLY=ON "-DMESHNET_LIBTORCH=$torch"
  "-DCMAKE_INCLUDE_PATH=$OUT/include")
# Of this machine's GPU alone, which halves the time that kernels take to compile.
if capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1); then
  [[ -n $capability ]] && configure+=("-DTORCH_CUDA_ARCH_LIST=$capability")
fi
SECONDS=0
cmake "${configure[@]}" >"$OUT.log" 2>&1 || { cat "$OUT.log" && exit 1; }
cmake --build "$OUT/build" --parallel
echo "built in $SECONDS s"

export TQDM_DISABLE=1
export MESHNET_MODEL_OPS=$OUT/build/libmodel_ops.so
[[ -d $OUT/tiny ]] && export MESHNET_TINY_MODELS=$OUT/tiny
SECONDS=0
"$PYTHON" -m pytest -q --confcutdir=tests/gpu -p no:cacheprovider tests/gpu
echo "parity in $SECONDS s"
SECONDS=0
"$PYTHON" tests/gpu/speed.py
echo "speed in $SECONDS s"
