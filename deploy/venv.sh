# Sourced by the scripts beside it: the environment .venv, or the one that HIGHTIDE_VENV names, made if it is missing.
venv=${HIGHTIDE_VENV:-.venv}
if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv"
    # One of this year installs in half of the time of the one that Python 3.11 brings.
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade pip
fi

# What pip takes to install. From the checkout it is installed, not linked: Spark finds the format by itself
# only in an installed package.
install() {
    rm -rf build ./*.egg-info  # of an installation that was ended: what was removed since would be installed again
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
    rm -rf build ./*.egg-info
}
