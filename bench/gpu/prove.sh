# Everything that is claimed of one GPU, in one go; run in an environment with the plugins (setup.sh). Results go to $1.
set -u
mkdir -p "$1/reports"
sh bench/gpu/conformance.sh "$1/reports"
timeout 120 python -m bench.gpu.serve tokens --out "$1/tokens.json"
timeout 90 python -m bench.gpu.attention --page 64 --out "$1/attention.json"
for runner in eager cuda-full; do # each in a process of its own: an engine's memory ends with its process
    timeout 150 python -m bench.gpu.serve speed --runner $runner --workload ${WORKLOADS:-G2 G3} --out "$1/speed-$runner.json"
done
