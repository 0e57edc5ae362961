# An environment for the scripts of this folder on a machine without a network, to be sourced from the repository's root.
#   WHEELS  folder of wheels that the machine lacks       BASE  site-packages with torch and Triton
#   VENV    where to make the environment
python3 -m venv --without-pip "$VENV" || return 1
SITE=$("$VENV/bin/python" -c 'import site; print(site.getsitepackages()[0])')
echo "$BASE" >"$SITE/zbase.pth" # a name that sorts last: what is installed here goes before
PIP="$VENV/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --no-index"
$PIP --no-compile "$WHEELS"/*.whl || return 1
$PIP --no-build-isolation $(for dist in $(python3 -m tools.dists); do
    case "$dist" in # C++ that takes minutes, and that is not measured here
    plugins/cpu_native | plugins/cache_radix_native) ;;
    *) printf -- '-e ./%s ' "$dist" ;;
    esac
done) || return 1
export PATH="$VENV/bin:$PATH" OMP_NUM_THREADS=8
