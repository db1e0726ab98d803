# SPDX-License-Identifier: Apache-2.0
"""Sphinx makes the HTML site with this; tools/docs, which `make docs` runs, prepares what it reads."""
import os
import pathlib
import re
import subprocess

TOP = pathlib.Path(os.environ["DLX_TOP"])

project = "dlpackd"
author = "The dlpackd authors"
copyright = author
release = re.search(r"^VERSION := (.*)", (TOP / "Makefile").read_text(), re.M)[1]

extensions = ["myst_parser", "hawkmoth", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"dlpackd {release}"
html_show_copyright = False
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
    said = subprocess.run(["gcc", "-print-file-name=include"], capture_output=True, text=True, check=True)
    return said.stdout.strip()


hawkmoth_root = os.environ["DLX_HEADERS"]  # copies: see tools/docs
hawkmoth_clang = ["-std=c11", f"-I{hawkmoth_root}", f"-I{compiler_includes()}"]


# -- comments and docstrings are plain text; Sphinx reads reStructuredText -------------------------

NAME = re.compile(r"\b(dlx_[a-z0-9_]+)\(\)")


def escape(text):
    return re.sub(r"([\\*_|<>])", r"\\\1", text)


def line_to_rst(line):
    parts = re.split(r"`([^`]*)`", line)
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = f"``{part}``"
        else:
            words = NAME.split(part)
            parts[i] = "".join(f":c:func:`{word}`" if k % 2 else escape(word) for k, word in enumerate(words))
    return "".join(parts)


def text_to_rst(lines):
    """Paragraphs, lists with `-`, code that is indented by four or more after an empty line, and tables
    of arguments: a name, two blanks or more, and what it means."""
    out, code, field = [], False, False
    for line in lines:
        before = out[-1] if out else ""
        field = field and line.startswith("  ")  # a line of an argument's text
        argument = re.fullmatch(r"(\w+) {2,}(\S.*)", line)
        if argument:
            if before and not before.startswith((":", "   ")):
                out.append("")
            out.append(f":{argument[1]}: {line_to_rst(argument[2])}")
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
    if lines and any(re.match(" {5,}", line) for line in lines[1:]) and not lines[0].startswith(" "):
        # Of a member: the lines after the first are further to the right, perhaps after a star.
        lines[:] = [re.sub(r"^\s*(\*\s+)?", "", line).rstrip() for line in lines]
    lines[:] = text_to_rst(lines)


def docstring(app, what, name, obj, options, lines):
    lines[:] = text_to_rst(lines)


def setup(app):
    app.connect("hawkmoth-process-docstring", header_comment)
    app.connect("autodoc-process-docstring", docstring)
