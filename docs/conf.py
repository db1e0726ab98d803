# SPDX-License-Identifier: Apache-2.0
"""Sphinx makes the HTML site with this. tools/docs, which `make docs` runs, prepares its input."""

import importlib.machinery
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

TOP = pathlib.Path(os.environ["DLX_TOP"])


def load(path):
    """A program of tools/ as a module."""
    sys.dont_write_bytecode = True
    loader = importlib.machinery.SourceFileLoader(path.name, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(path.name, loader))
    loader.exec_module(module)
    return module


man = load(TOP / "tools/man")  # which knows how the comments of headers list their errors
ERRORS = man.errors_of(TOP / "include/dlx/error.h")

project = "dlpackd"
author = "The dlpackd authors"
copyright = author
release = re.search(r"^VERSION := (.*)", (TOP / "Makefile").read_text(), re.M)[1]

extensions = ["myst_parser", "hawkmoth", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"dlpackd {release}"
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["style"]
html_css_files = ["site.css"]
toc_object_entries_show_parents = "hide"
exclude_patterns = ["reference/about_*.md", "reference/errors.md"]
myst_heading_anchors = 4
nitpicky = True
nitpick_ignore_regex = [
    # Types of C and of the system.
    ("c:identifier", r"u?int\d+_t|size_t|bool|int64_t|timespec|DL\w+|dlx_\w+"),
    ("py:class", r".*"),
]
autodoc_member_order = "bysource"  # of a module: the order of __all__
autodoc_class_signature = "separated"


def compiler_includes():
    said = subprocess.run(
        ["gcc", "-print-file-name=include"], capture_output=True, text=True, check=True
    )
    return said.stdout.strip()


hawkmoth_root = os.environ["DLX_HEADERS"]  # copies: see tools/docs
hawkmoth_clang = ["-std=c11", f"-I{hawkmoth_root}", f"-I{compiler_includes()}"]


# -- comments and docstrings are plain text; Sphinx reads reStructuredText -------------------------

NAME = re.compile(r"\b(dlx_[a-z0-9_]+)\(\)")
CONSTANT = re.compile(r"(\$?\bDLX_[A-Z0-9_]+\b(?:=\w+)?)")


def escape(text):
    return re.sub(r"([\\*_|<>])", r"\\\1", text)


def line_to_rst(line):
    parts = re.split(r"`([^`]*)`", line)
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = f"``{part}``"
        else:
            words = NAME.split(part)
            parts[i] = "".join(
                f":c:func:`{word}`" if k % 2 else text_without_names(word)
                for k, word in enumerate(words)
            )
    return "".join(parts)


def text_without_names(text):
    return "".join(
        f"``{word}``" if k % 2 else escape(word) for k, word in enumerate(CONSTANT.split(text))
    )


def text_to_rst(lines):
    """Paragraphs, lists with `-`, code that is indented by four or more after an empty line, and
    tables of arguments: a name, two blanks or more, and what it means."""
    out, code, field = [], False, False
    for line in lines:
        before = out[-1] if out else ""
        field = field and line.startswith("  ")  # a line of an argument's text
        argument = re.fullmatch(r"(\w+) {2,}(\S.*)", line)
        if argument:
            if before and not before.startswith((":", "   ")):
                out.append("")
            out.append(f":param {argument[1]}: {line_to_rst(argument[2])}")
            field = True
        elif field:
            out.append(f"   {line_to_rst(line.strip())}")  # goes on
        elif line.startswith("    ") and (code or not before.strip()):
            out += [] if code else ["::", ""]
            out.append(line)
            code = True
        else:
            code = code and not line.strip()
            if re.match(r"\s*- ", line) and before.strip() and not re.match(r"\s*- |  ", before):
                out.append("")
            out.append(line if code else line_to_rst(line))
    return out


def header_comment(app, lines, transform, options):
    is_table = any(re.match(" {2,3}DLX_E_", line) for line in lines)  # of errors, with long rows
    if (
        lines
        and not is_table
        and any(re.match(" {5,}", line) for line in lines[1:])
        and not lines[0].startswith(" ")
    ):
        # Of a member: the lines after the first are further to the right, perhaps after a star.
        lines[:] = [re.sub(r"^\s*(\*\s+)?", "", line).rstrip() for line in lines]
    text, lead, codes, tail = man.returns_of("\n".join(lines))
    if not codes:
        lines[:] = text_to_rst(lines)
        return
    lines[:] = [
        *text_to_rst(text.split("\n")),
        "",
        line_to_rst(lead.rstrip(".")) + (", and:" if lead.startswith("Returns as") else ", or:"),
        "",
    ]
    for code, why in codes:
        lines += [f"- `{code} <#{code}>`__: {line_to_rst(why or ERRORS[code][1])}"]
    lines += ["", line_to_rst("And " + tail)] if tail else []


def docstring(app, what, name, obj, options, lines):
    lines[:] = text_to_rst(lines)


def setup(app):
    app.connect("hawkmoth-process-docstring", header_comment)
    app.connect("autodoc-process-docstring", docstring)
