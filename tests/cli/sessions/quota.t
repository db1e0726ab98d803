dlxctl quota: a table for people, JSON for programs. What depends on the machine is cut off.

  $ . "$TESTDIR/../scene.sh"
  $ command dlxctl pub a $npy/f4.npy --hold >/dev/null 2>&1 &
  $ wait_publisher a
  $ dlxctl quota | sed -E "s/^ +//; s/^$(id -u) /UID /; s/  +/ /g; s/ +$//" |
  >   sed -E 's/( (bytes|descriptors.*) [0-9.]+( KiB)?) [0-9.]*( [MGT]iB)?/\1 N/; s/(second) .*/\1 N/'
  UID SOCKET CLASS QUOTA USED MAX
  UID dlpackd default bytes 40.0 KiB N
  UID dlpackd default retained-bytes 0 B -
  UID dlpackd default store-entries 0 -
  UID dlpackd default connections 2 4096
  UID dlpackd default requests-per-second N
  UID dlpackd default objects 1 65536
  UID dlpackd default links 0 65536
  UID dlpackd default patterns 0 1024
  UID dlpackd default pending-links 0 2048
  UID dlpackd default failed-links 0 16384
  UID dlpackd default gpu-bytes 0 B -
  UID dlpackd default gpu-calls 0 1024
  UID dlpackd default descriptors-in-flight 0 N
  UID dlpackd default descriptors 8 N
  $ dlxctl quota --json | grep -e uid -e socket -e class -A 2 -e '"objects"'
      "uid": N,
      "socket": "dlpackd",
      "class": "default",
      "quotas": {
        "bytes": {
  --
        "objects": {
          "used": 1,
          "max": 65536
