"""Reads a file of `trainerd --trace` and checks the properties that every such file has."""
import json

EPSILON = 1e-3  # us; times have a resolution of 1 ns


def read(path):
    """Returns the name of the process and {row: [span]}."""
    with open(path) as f:
        events = json.load(f)["traceEvents"]
    names = {e["name"] + str(e["tid"]): e["args"]["name"] for e in events
             if e["ph"] == "M" and e["name"] in ("process_name", "thread_name")}
    rows = {}
    for e in events:
        assert e["ph"] in "MX", e
        if e["ph"] == "X":
            assert e["dur"] >= 0, e
            rows.setdefault(names["thread_name%d" % e["tid"]], []).append(e)
    return names["process_name0"], rows


def tree(spans):
    """Returns [(span, [children])]; fails if two spans of one row overlap and neither contains the other."""
    top, stack = [], []
    for s in sorted(spans, key=lambda s: (s["ts"], -s["dur"])):
        end = s["ts"] + s["dur"]
        node = (s, [])
        while stack and stack[-1][0]["ts"] + stack[-1][0]["dur"] <= s["ts"] + EPSILON:
            stack.pop()
        if stack:
            parent = stack[-1][0]
            assert end <= parent["ts"] + parent["dur"] + EPSILON, (s, parent)
            stack[-1][1].append(node)
        else:
            top.append(node)
        stack.append(node)
    return top


def steps_of(spans):
    return [n for n in tree(spans) if n[0]["name"] == "step"]


def parts_of(profile):
    return {(p["what"], p["direction"]): p["seconds"] for p in profile["parts"]}


def check_profile(profile, rows, first, n, inside, rest="other"):
    """Compares the table with the sums of the spans of all replicas: of the calls, and of the spans named in `inside`."""
    assert (profile["first_step"], profile["steps"], profile["replicas"]) == (first, n, len(rows))
    want, step = {}, 0
    for spans in rows:
        for s in (s for s in spans if first <= s["args"]["step"] < first + n):
            if s["cat"] == "step":
                step += s["dur"]
            elif "direction" in s["args"]:
                want[s["cat"], s["args"]["direction"]] = want.get((s["cat"], s["args"]["direction"]), 0) + s["dur"]
            elif s["cat"] in (inside | {"checkpoint"}) - {"forward", "backward"}:
                want[s["cat"], ""] = want.get((s["cat"], ""), 0) + s["dur"]
    share = 1e-6 / (n * len(rows))
    got = parts_of(profile)
    assert abs(profile["step_seconds"] - step * share) <= 1e-4 * step * share
    assert set(got) == set(want) | {(rest, "")}, (set(got), set(want))
    for key, us in want.items():
        assert abs(got[key] - us * share) <= 1e-9 + 1e-3 * us * share, key
    total = sum(got.values())
    assert abs(total - profile["step_seconds"]) <= 1e-6 * total
    assert got[rest, ""] >= 0
    sizes = [p["seconds"] for p in profile["parts"]]
    assert sizes == sorted(sizes, reverse=True)
    assert abs(sum(p["share"] for p in profile["parts"]) - 1) < 1e-6
