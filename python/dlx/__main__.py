# SPDX-License-Identifier: Apache-2.0
"""The command line of dlpackd: `python -m dlx`, and the command `dlxctl` that the wheel installs.

Both run the program dlxctl in the place of this process. A wheel brings the program; otherwise, as
in a package of a distribution, $PATH is searched for it.
"""

import os
import shutil
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))


def main():
    program = os.path.join(FOLDER, "dlxctl")
    if not os.path.exists(program):
        program = shutil.which("dlxctl")
    if not program:
        sys.exit(
            f"dlx: no program dlxctl, neither in {FOLDER} nor in $PATH: install it (on Debian: the "
            f"package dlxctl)"
        )
    sys.stdout.flush()
    os.execv(program, ["dlxctl", *sys.argv[1:]])


if __name__ == "__main__":
    main()
