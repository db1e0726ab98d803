# SPDX-License-Identifier: Apache-2.0
"""The results of exchange.py as Markdown: docs/INTEROP.md."""

import textwrap

from frameworks import DTYPES, LAYOUTS

WIDTH = 100  # of lines, in columns

HEAD = """# Interoperability

`make check-interop` makes this page. It runs `python/tests/interop/exchange.py`, in which each
framework publishes tensors in one process, and each takes them in another process, which compares
the values.
Python {python}, DLPack {dlpack}.

| result | meaning |
|---|---|
| view | the values are right, and the array has the same memory |
| copy | the values are right, and the framework made a copy |
| good | the values are right; the framework does not tell whether it made a copy |
| no | refused with an exception, whose text is at the end of this page |
| - | the framework itself has no such type or layout |
"""


def present(results):
    return [n for n, x in results["frameworks"].items() if "version" in x]


def line(cells):
    return "| " + " | ".join(cells) + " |"


def table(head, rows):
    """One table, or several, each with the first column, where lines would be too long."""
    parts, first = [], 1
    while first < len(head):
        end = first + 1
        while end < len(head) and all(
            len(line([row[0], *row[first : end + 1]])) <= WIDTH for row in [head, *rows]
        ):
            end += 1
        out = [line([row[0], *row[first:end]]) for row in [head, *rows]]
        out.insert(1, "|---" * (1 + end - first) + "|")
        parts.append("\n".join(out) + "\n")
        first = end
    return "\n".join(parts)


def given(results, producer, dtype, layout):
    for row in results["cases"]:
        if (row["producer"], row["dtype"], row["layout"]) == (producer, dtype, layout):
            other = {x["arrived"] for x in row["taken"].values() if "arrived" in x} - {dtype}
            if other:
                return "as " + ", ".join(sorted(other))
            return {"sent": "yes", "unmade": "-", "refused": "no"}.get(
                row["sent"]["outcome"], row["sent"]["outcome"]
            )
    return "?"


def taken(results, consumer, dtype, layout):
    """The same from all producers, or all that there were."""
    said = {
        row["taken"][consumer]["outcome"]
        for row in results["cases"]
        if (row["dtype"], row["layout"]) == (dtype, layout) and consumer in row["taken"]
    }
    return ", ".join(sorted({"refused": "no"}.get(x, x) for x in said)) or "?"


def cell(results, p, c):
    outcomes = [
        row["taken"][c]["outcome"]
        for row in results["cases"]
        if row["producer"] == p and c in row["taken"]
    ]
    good = sum(x in ("view", "copy", "good") for x in outcomes)
    bad = sum(x in ("WRONG", "CRASH") for x in outcomes)
    return f"{good}/{len(outcomes)}" + (f", {bad} WRONG" if bad else "")


def refusals(results):
    seen = {}
    for row in results["cases"]:
        what = row["dtype"] if row["layout"] == "plain" else row["layout"]
        if row["sent"]["outcome"] == "refused":
            seen.setdefault((row["producer"], "gives", row["sent"]["words"]), []).append(what)
        for c, x in row["taken"].items():
            if x["outcome"] == "refused":
                seen.setdefault((c, "takes", x["words"]), []).append(what)
    for (name, role, said), whats in seen.items():
        yield name, role, list(dict.fromkeys(whats)), said


def refused(rows):
    """A list for each framework: what it refused, and the text of the exception."""
    out = []
    for framework in dict.fromkeys(row[0] for row in rows):
        out.append(f"### {framework}\n")
        for name, role, whats, said in rows:
            if name == framework:
                item = f"- {role} {', '.join(whats)}: `{said.replace('`', chr(39))}`"
                out.append(
                    textwrap.fill(
                        item,
                        WIDTH,
                        subsequent_indent="  ",
                        break_long_words=False,
                        break_on_hyphens=False,
                    )
                )
        out.append("")
    return "\n".join(out)


def tables(results):
    names = present(results)
    parts = [
        HEAD.format(
            python=results["python"], dlpack=".".join(str(x) for x in results["dlx"]["dlpack"])
        ),
        table(
            ["framework", "version, or why it is not here"],
            [
                [n, x.get("version") or f"*not run*: {x['absent']}"]
                for n, x in results["frameworks"].items()
            ],
        ),
        "## Producers and consumers\n\nHow many tensors arrived with the right values, of how many "
        "were sent. The others were refused.\n",
        table(
            ["gives \\ takes", *names], [[p, *(cell(results, p, c) for c in names)] for p in names]
        ),
    ]
    for what, keys in (
        ("Types", [(x, "plain") for x in DTYPES]),
        ("Layouts", [("float32", x) for x in LAYOUTS[1:]]),
    ):
        name = [k[0] if what == "Types" else k[1] for k in keys]
        parts += [
            f"## {what} that each takes\n",
            table(
                [what.lower(), *names],
                [[name[i], *(taken(results, c, *k) for c in names)] for i, k in enumerate(keys)],
            ),
        ]
        parts += [
            f"## {what} that each gives\n",
            table(
                [what.lower(), *names],
                [[name[i], *(given(results, p, *k) for p in names)] for i, k in enumerate(keys)],
            ),
        ]
    parts += ["## Refusals, and why\n", refused(list(refusals(results)))]
    return "\n".join(parts)
