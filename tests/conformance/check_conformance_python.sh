#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The conformance suite with the adapter of Python.
exec "$(dirname "$0")/run" python
