#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The atomic accesses of ring/, function by function, with their memory orders and fences, are those
# of tests/model/orders.txt. The simulations are sequentially consistent and x86 hides most weaker
# orders, so that no other test sees one. orders.cpp has to be changed (`make model`) before this
# list is: tests/model/check_orders.sh --write
set -euo pipefail
cd "$(dirname "$0")/../.."

list() {
    python3 - ring/*.[ch] <<'END'
import re
import sys

FUNCTION = r"^[a-z][^;{}=]*?\b(?!__attribute__)(?P<name>\w+)\([^;{}]*\)\n\{"
ACCESS = r"\bdlx_(?P<call>(?:load|store)(?:32|64)_\w+|fence\w*)\("
CHANGE = r"\batomic_(?P<change>(?:compare_exchange|fetch)_\w+?)_explicit\("


def word_of(text):
    """The last member that the first argument names."""
    depth = i = 0
    while depth > 0 or text[i] not in ",)":
        depth += (text[i] in "([") - (text[i] in ")]")
        i += 1
    names = re.findall(r"(?:->|\.)(\w+)", re.sub(r"\[.*\]", "", text[:i]))
    return names[-1] if names else text[:i].strip()


def orders_of(text):
    """The memory orders that the call names."""
    return re.findall(r"memory_order_(\w+)", text[: text.index(";")])


for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as f:
        text = re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)
    function = "?"
    for found in re.finditer(FUNCTION + "|" + ACCESS + "|" + CHANGE, text, re.M):
        rest = text[found.end() :]
        if found["name"]:
            function = found["name"]
        elif found["change"]:
            print(path, function, found["change"], word_of(rest), *orders_of(rest))
        else:
            print(" ".join((path, function, found["call"], word_of(rest))).rstrip())
END
}

if [ "${1:-}" = --write ]; then
    list >tests/model/orders.txt
    exit
fi
list | diff -u tests/model/orders.txt - || {
    echo "a memory order or a fence of ring/ is not as in tests/model/orders.txt:" \
        "see the head of $0"
    exit 1
}
