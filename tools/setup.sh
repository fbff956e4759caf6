#!/bin/sh
# Sets up a checkout for `make demo`, `make test` or `make lint`: system packages, then the
# environment .venv, then, for tests, the drivers in .drivers that no system package has. To check
# style and types takes the environment of the tests, and no driver; to try arm64 takes that and an
# emulator (tools/arm64.py).
# Usage: tools/setup.sh demo|test|lint|arm64
#
# Safe to run again at any time: what is already there is left alone, without using the network.
# Without the rights to install system packages it says what is missing and goes on; the library
# then uses the drivers that are there, at worst none (the CPU).
set -eu

purpose=${1:-test}
case $purpose in demo | test | lint | arm64) ;; *)
  echo "usage: tools/setup.sh demo|test|lint|arm64" >&2
  exit 2
  ;;
esac
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
venv=.venv

say() { echo "setup: $*" >&2; }

# --- rights -----------------------------------------------------------------------------------
if [ "$(id -u)" = 0 ]; then
  as_root="env"
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
  as_root="sudo -n env"
else
  as_root=""
fi

# --- system packages --------------------------------------------------------------------------
os_id=$(. /etc/os-release 2>/dev/null && echo "${ID:-}" || true)

is_installed() {
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

missing_of() {
  for package in "$@"; do
    is_installed "$package" || printf '%s ' "$package"
  done
}

apt_install() {
  # An image without package lists fails at once; only then are they fetched.
  options="-y -q --no-install-recommends -o DPkg::Lock::Timeout=120"
  # shellcheck disable=SC2086  # words on purpose
  $as_root DEBIAN_FRONTEND=noninteractive apt-get install $options "$@" >&2 2>/dev/null && return
  $as_root DEBIAN_FRONTEND=noninteractive apt-get update -q >&2 || true
  # shellcheck disable=SC2086
  $as_root DEBIAN_FRONTEND=noninteractive apt-get install $options "$@" >&2
}

# Installs what is missing of its arguments if it may; says what is still missing if not.
want_packages() {
  # shellcheck disable=SC2046
  set -- $(missing_of "$@")
  [ $# -gt 0 ] || return 0
  if [ -n "$as_root" ]; then
    say "installing system packages: $*"
    if ! apt_install "$@"; then
      # One unknown name makes apt refuse all of them; the others are still worth having.
      for package in "$@"; do
        apt_install "$package" || say "apt cannot install $package"
      done
    fi
    # shellcheck disable=SC2046
    set -- $(missing_of "$@")
    [ $# -gt 0 ] || return 0
    say "still missing: $*"
  else
    say "missing system packages (no root rights and no sudo without password): $*"
    say "to install them:  sudo apt-get update && sudo apt-get install $*"
  fi
  return 1
}

install_drivers() {
  [ "$purpose" != lint ] || return 0
  if ! command -v dpkg-query >/dev/null 2>&1 || ! command -v apt-get >/dev/null 2>&1; then
    say "not a Debian system: install a Vulkan loader and driver yourself if you want a GPU"
    return 0
  fi
  packages="libvulkan1 mesa-vulkan-drivers libegl1 libgles2 libegl-mesa0 libgl1-mesa-dri"
  [ "$purpose" != arm64 ] || packages="qemu-user-static"
  if [ "$purpose" = test ]; then
    packages="$packages vulkan-validationlayers spirv-tools glslang-tools"
    # What examples/plugins/gpuedge-opencl is tested on: 43 MB to fetch, with a compiler of its own.
    packages="$packages pocl-opencl-icd"
    # A node from elsewhere brings its own npm, which Debian's packages would conflict with.
    command -v node >/dev/null 2>&1 || packages="$packages nodejs"
    command -v npm >/dev/null 2>&1 || packages="$packages npm"
    # The fault kit (tests/faults) is C.
    command -v cc >/dev/null 2>&1 || packages="$packages gcc libc6-dev"
    # Its Vulkan driver, SwiftShader.
    if [ "$os_id" = ubuntu ]; then
      say "Ubuntu's chromium is a snap, which has no driver to share: SwiftShader will be missing"
    else
      packages="$packages chromium"
    fi
  fi
  # shellcheck disable=SC2086
  want_packages $packages || say "going on with the drivers that are there"
}

# --- Python -----------------------------------------------------------------------------------
check_python() {
  if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    say "'$python' is missing or older than Python 3.11; name another:  PYTHON=python3.12 make"
    exit 1
  fi
}

make_venv() {
  "$venv/bin/python" -m pip --version >/dev/null 2>&1 && return 0
  if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    # Debian keeps ensurepip in a package of its own.
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if command -v apt-get >/dev/null 2>&1; then
      want_packages "python$version-venv" || true
    fi
  fi
  rm -rf "$venv"
  if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    say "making $venv"
    "$python" -m venv "$venv"
  elif "$python" -m virtualenv --version >/dev/null 2>&1; then
    say "making $venv with virtualenv"
    "$python" -m virtualenv -q "$venv"
  else
    say "cannot make a virtual environment: Python's ensurepip is missing"
    say "to install it:  sudo apt-get update && sudo apt-get install python3-venv"
    exit 1
  fi
}

install_package() {
  pip="$venv/bin/python -m pip --disable-pip-version-check"
  if [ "$purpose" != demo ]; then
    # Dependency groups came with pip 25.1.
    $pip install --help | grep -q -- --group || $pip install -q --upgrade "pip>=25.1"
    $pip install -q --editable ".[all,farm]" --group dev
  else
    $pip install -q --editable ".[all,examples]"
  fi
}

# Drivers without a system package: for tests only.
fetch_drivers() {
  [ "$purpose" = test ] || return 0
  "$venv/bin/python" tools/drivers.py || say "going on with the drivers that are there"
  # Not in the environment: gpuedge is tested as it is without plug-ins.
  if [ ! -d .drivers/openvino/openvino ]; then
    say "fetching OpenVINO for the example of an executor (60 MB, 180 MB on disk)"
    "$venv/bin/python" -m pip --disable-pip-version-check install -q --no-deps \
      --target .drivers/openvino "openvino==2026.4.1" || say "going on without OpenVINO"
  fi
}

install_drivers
check_python

# The stamp changes with pyproject.toml and with the place of the checkout (a moved .venv is dead).
# What the tests need includes what the demo needs, and is what the other purposes need.
stamp=$purpose
case $purpose in lint | arm64) stamp=test ;; esac
key=$({ cat pyproject.toml; pwd; } | sha256sum | cut -c1-16)
if [ ! -e "$venv/.setup-$stamp-$key" ] && [ ! -e "$venv/.setup-test-$key" ]; then
  make_venv
  say "installing gpuedge into $venv (this can take a minute or two)"
  install_package
  rm -f "$venv/.setup-$stamp-"*
  touch "$venv/.setup-$stamp-$key"
  say "done"
fi
fetch_drivers
