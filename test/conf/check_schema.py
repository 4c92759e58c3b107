"""check_schema.py: checks config/job.schema.json against the draft 2020-12 meta-schema, the example
jobs, and the jobs on standard input (lines "accept JSON" or "refuse JSON").

Prints a line for each difference, and then exits with code 1. Must run in the root of the repository.
Needs python3-jsonschema, which scripts/setup installs."""
import glob
import json
import sys

try:
    from jsonschema import Draft202012Validator
except ImportError:
    sys.exit("check_schema.py: no jsonschema 4 here: install python3-jsonschema")

SCHEMA = "config/job.schema.json"


def properties(schema, pointer=""):
    """Yields (pointer, schema) of every value below a schema."""
    for name, value in schema.get("properties", {}).items():
        yield f"{pointer}/{name}", value
        yield from properties(value, f"{pointer}/{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield f"{pointer}/*", schema[key]
            yield from properties(schema[key], f"{pointer}/*")


def reasons(validator, job):
    return [f"{e.json_path}: {e.message}" for e in validator.iter_errors(job)]


def main():
    with open(SCHEMA, encoding="utf-8") as f:
        schema = json.load(f)
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    wrong = []

    described = list(properties(schema))
    for pointer, value in described:
        if not value.get("description", "").endswith("."):
            wrong.append(f"{pointer}: no sentence of description")
        if "default" in value and not Draft202012Validator(value).is_valid(value["default"]):
            wrong.append(f"{pointer}: the default is not valid")
    examples = [p for p in sorted(glob.glob("config/*.json") + glob.glob("config/digits/*.json"))
                if not p.endswith(".schema.json") and "/cluster-" not in p and "/grafana-" not in p]
    for path in examples:
        with open(path, encoding="utf-8") as f:
            job = json.load(f)
        wrong += [f"{path}: {reason}" for reason in reasons(validator, job)]
    judged = 0
    for line in sys.stdin:
        verdict, text = line.split(" ", 1)
        found = reasons(validator, json.loads(text))
        judged += 1
        if (verdict == "accept") != (not found):
            wrong.append(f"should {verdict}: {text.strip()}: {found}")
    if len(described) < 50 or len(examples) < 3 or judged < 100:
        wrong.append(f"too little to judge: {len(described)} keys, {len(examples)} examples, "
                     f"{judged} jobs")
    print("\n".join(wrong), end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
