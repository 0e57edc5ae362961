# The CUDA plugins held to their contracts on this machine's GPU, side by side, at level 2; reports go to $1.
# To be run in an environment that has them (setup.sh makes one). Ends with the number of plugins that fall short.
for plugin in platform:cuda ops:triton graph_runner:cuda-full graph_runner:cuda-piecewise graph_runner:cuda-breakable attention:triton; do
    name=$(echo $plugin | tr : -)
    timeout "${SECONDS_EACH:-400}" srt conformance run $plugin --device cuda --level 2 --report "$1/$name.json" >"$1/$name.txt" 2>&1 &
    jobs="$jobs $!"
done
failed=0
for job in $jobs; do
    wait "$job" || failed=$((failed + 1))
done
for text in "$1"/*.txt; do
    echo "== $text"
    grep -v '^ *\(pass\|refused\|informational\|ok\)\b' "$text" | tail -"${LINES_EACH:-25}"
done
exit $failed
