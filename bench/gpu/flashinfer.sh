# attention:flashinfer held to its contract on this GPU at level 2, over modules that are built first. To be sourced like
# setup.sh, with its variables, from the repository's root. What was not built in time is built by the checks themselves.
#   FLASHINFER  folder with FlashInfer's small wheel, that of apache-tvm-ffi, and packs of modules, if there are any
#   $1          folder for the report, and for packs of all modules that there are then
. bench/gpu/setup.sh || return 1
export FLASHINFER_WORKSPACE_BASE=/tmp/flashinfer FLASHINFER_CUDA_ARCH_LIST=9.0a
$PIP "$FLASHINFER"/*.whl || return 1
python -m bench.gpu.flashinfer_modules unpack "$FLASHINFER"
python -m bench.gpu.flashinfer_modules build "$1" --seconds "${SECONDS_BUILD:-400}"
timeout "${SECONDS_EACH:-400}" srt conformance run attention:flashinfer --device cuda --level 2 \
    --report "$1/attention-flashinfer.json" >"$1/attention-flashinfer.txt" 2>&1
echo "conformance ended with $?"
grep -v '^ *\(pass\|refused\|informational\|ok\)\b' "$1/attention-flashinfer.txt" | tail -60
