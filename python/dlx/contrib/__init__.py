# SPDX-License-Identifier: Apache-2.0
"""Connectors, which plug dlx into other programs, one module for each. `import dlx` imports none of
them.
"""
