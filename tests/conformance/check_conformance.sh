#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The conformance suite with the adapters of C and C++.
exec "$(dirname "$0")/run" c cpp
