#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The files of packaging/ that a container runtime, Kubernetes, AppArmor or SELinux reads: that they
# are well formed by the rules of their readers, that the tools compile them, and that their paths
# are those of the units. No kernel enforces them here.
set -euo pipefail
cd "$(dirname "$0")/../.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
missing=()

if python3 -c 'import yaml' 2>/dev/null; then
    python3 - <<'EOF'
import json
import re
import sys

import yaml


def fail(text):
    sys.exit(f"check_packaging: {text}")


def only(what, where, required, optional=()):
    """CDI refuses a specification with unknown fields."""
    if set(required) - set(where) or set(where) - set(required) - set(optional):
        fail(f"{what} has {sorted(where)}, not {sorted(required)} and perhaps {sorted(optional)}")


# The folders that the units make, by the name of the socket.
folders = {}
for name, unit in ("system", "dlpackd.socket"), ("pods", "dlpackd@.socket"):
    text = open(f"systemd/system/{unit}").read()
    path = re.search("^ListenSequentialPacket=(.*)$", text, re.M)[1].replace("%i", name)
    folders[name] = path.rpartition("/")[0]

# SPEC.md of the Container Device Interface.
with open("packaging/cdi/dlpackd.json") as file:
    cdi = json.load(file)
only("the CDI file", cdi, ["cdiVersion", "kind", "devices"])
if not re.fullmatch(r"[a-zA-Z][\w.-]*[a-zA-Z0-9]/[a-zA-Z][\w-]*[a-zA-Z0-9]", cdi["kind"]):
    fail(f"the kind {cdi['kind']} is not VENDOR/CLASS")
names = [device["name"] for device in cdi["devices"]]
if sorted(names) != sorted(folders):
    fail(f"devices {names}, not {sorted(folders)}")
for device in cdi["devices"]:
    only("a device", device, ["name", "containerEdits"])
    only("its edits", device["containerEdits"], ["env", "mounts"])
    (mount,) = device["containerEdits"]["mounts"]
    only("a mount", mount, ["hostPath", "containerPath", "options"])
    folder = folders[device["name"]]
    if mount["hostPath"] != folder or "ro" not in mount["options"]:
        fail(f"device {device['name']} mounts {mount}, not {folder} read-only")
    if device["containerEdits"]["env"] != [f"DLX_SOCKET={mount['containerPath']}/dlpackd.sock"]:
        fail(f"device {device['name']} sets {device['containerEdits']['env']}")

# Names in a pod have to be of something: kubectl says so only of what it sends to a cluster.
with open("packaging/kubernetes/shared-gpu.yaml") as file:
    objects = list(yaml.safe_load_all(file))
claims = {o["metadata"]["name"] for o in objects if o["kind"] == "ResourceClaim"}
pods = [o for o in objects if o["kind"] == "Pod"]
if len(claims) != 1 or len(pods) != 2 or len(objects) != 3:
    fail("not a claim and two pods")
for pod in pods:
    spec = pod["spec"]
    volumes = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    given = {claim["name"]: claim["resourceClaimName"] for claim in spec["resourceClaims"]}
    if set(given.values()) != claims:
        fail(f"{pod['metadata']['name']} names the claims {given}, and there is {claims}")
    for container in spec["containers"]:
        (mount,) = container["volumeMounts"]
        if volumes.get(mount["name"]) != folders["pods"] or not mount["readOnly"]:
            fail(f"{container['name']} mounts {mount} of {volumes}")
        if {claim["name"] for claim in container["resources"]["claims"]} != set(given):
            fail(f"{container['name']} uses {container['resources']['claims']} of {given}")
        socket = {"name": "DLX_SOCKET", "value": f"{mount['mountPath']}/dlpackd.sock"}
        if socket not in container["env"]:
            fail(f"{container['name']} has {container['env']}")
print(
    "check_packaging: the CDI file and the Kubernetes example are well formed,"
    " and mount what the units make"
)
EOF
else
    missing+=(python3-yaml)
fi

if command -v apparmor_parser >/dev/null; then
    profiles=packaging/apparmor/usr.bin.dlpackd
    # Without a kernel that has it, the parser says so on the standard error, and goes on.
    apparmor_parser --skip-kernel-load --skip-cache --skip-read-cache $profiles 2>"$tmp/said" || {
        cat "$tmp/said"
        exit 1
    }
    [ "$(apparmor_parser --names $profiles 2>/dev/null | tr '\n' ' ')" = \
        "dlpackd dlpackd-keeper " ]
    echo "check_packaging: AppArmor's parser compiles its profiles"
else
    missing+=(apparmor)
fi

if [ -e /usr/share/selinux/devel/Makefile ]; then
    cp packaging/selinux/dlpackd.* "$tmp/"
    env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make -C "$tmp" \
        -f /usr/share/selinux/devel/Makefile dlpackd.pp >"$tmp/said" 2>&1 || {
        cat "$tmp/said"
        exit 1
    }
    # In an optional block: it is left out where the reference policy has no containers.
    grep -q 'allow container_domain dlpackd_t:unix_stream_socket connectto' \
        "$tmp/tmp/dlpackd.tmp" || {
        echo "check_packaging: containers are not allowed to connect"
        exit 1
    }
    [ -s "$tmp/dlpackd.pp" ]
    echo "check_packaging: checkmodule compiles the SELinux module"
else
    missing+=(selinux-policy-dev)
fi

[ ${#missing[@]} = 0 ] || echo "SKIP: no ${missing[*]}: tools/setup.sh --lint installs them"
