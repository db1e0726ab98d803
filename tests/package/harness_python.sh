# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# For tests that source this: pytest, by $PYTHON, or the system's where that has no pytest or no
# NumPy. With the sanitizers of the build (not ThreadSanitizer: Python would have to be built with
# it). Without any of that it says SKIP and ends.
#
#   run_pytest FOLDER ARGUMENT...    the tests, with the package dlx of that folder
san=${SAN:-}
if [[ $san == *thread* ]]; then
    echo "SKIP: Python is not built for ThreadSanitizer"
    exit 77
fi

python=
for candidate in "${PYTHON:-python3}" /usr/bin/python3; do
    if "$candidate" -c 'import sys, pytest, numpy; sys.exit(sys.version_info < (3, 11))' \
        2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "SKIP: no Python 3.11 or newer with pytest and NumPy (tools/setup.sh installs them)"
    exit 77
fi

preload=()
if [[ $san == *address* ]]; then
    read -ra cc <<<"${CC:-gcc}"
    name=libasan.so
    if [[ ${cc[0]} == *clang* ]]; then name=libclang_rt.asan-x86_64.so; fi
    library=$("${cc[@]}" -print-file-name="$name")
    if [ ! -e "$library" ]; then
        echo "SKIP: the shared library of the sanitizer is not there"
        exit 77
    fi
    # Python keeps what it has until it ends; what we keep is counted by test_leaks.py. Faults are
    # ours to test.
    asan=detect_leaks=0:handle_segv=0:allow_user_segv_handler=1
    asan+=:allocator_may_return_null=1:detect_stack_use_after_return=1
    preload=(env "LD_PRELOAD=$library" PYTHONMALLOC=malloc "ASAN_OPTIONS=$asan"
        UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1)
fi

run_pytest() {
    env -u DLX_AUTOSPAWN PYTHONPATH="$1" PYTHONDONTWRITEBYTECODE=1 PYTHONFAULTHANDLER= \
        "${preload[@]}" "$python" -X dev -m pytest -q -p no:cacheprovider \
        -W error::ResourceWarning -W error::pytest.PytestUnraisableExceptionWarning "${@:2}"
}
