# Everything that is claimed of one GPU, in one go; run in an environment with the plugins (setup.sh). Results go to $1.
# Ends with 1 if a plugin is not certified, a token differs, or a script fails; all of them run nevertheless.
set -u
failed=0
mkdir -p "$1/reports"
sh bench/gpu/conformance.sh "$1/reports" || failed=1
timeout 120 python -m bench.gpu.serve tokens --out "$1/tokens.json" || failed=1
timeout 90 python -m bench.gpu.attention --page 64 --out "$1/attention.json" || failed=1
for shape in qwen3-0.6b llama-8b; do
    timeout 200 python -m bench.gpu.serve speed --runner cuda-full --shape $shape --out "$1/speed-$shape.json" || failed=1
done
exit $failed
