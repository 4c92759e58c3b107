#!/usr/bin/env python3
"""validate.py [FOLDER]: validates config/kubernetes against the strict schemas of every release of Kubernetes from 1.27 on
that the package kubernetes-validate contains; `make kubernetes` installs it. Strict: an unknown field is an error.

Objects of operators have no schema there: their jobs and pods are validated as a Job and as a PodTemplate. FOLDER may
have the CustomResourceDefinitions of the operators (YAML files); the objects are then validated against these as a whole."""
import glob
import os
import sys

import jsonschema
import kubernetes_validate
import kubernetes_validate.utils
import yaml

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OLDEST = (1, 27)


def documents():
    for path in sorted(glob.glob(os.path.join(ROOT, "config", "kubernetes", "*.yaml"))):
        with open(path) as f:
            for document in yaml.safe_load_all(f):
                yield os.path.basename(path), document


def as_core(document):
    """Yields the objects of Kubernetes itself that the document is or contains."""
    meta, spec = {"name": document["metadata"]["name"]}, document["spec"] if "spec" in document else {}
    kind = document["kind"]
    jobs = {"JobSet": spec, "TrainingRuntime": spec.get("template", {}).get("spec", {})}.get(kind, {}).get("replicatedJobs", [])
    if kind == "TFJob":
        for replica in spec["tfReplicaSpecs"].values():
            yield {"apiVersion": "v1", "kind": "PodTemplate", "metadata": meta, "template": replica["template"]}
    elif jobs:
        for job in jobs:
            yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": job["template"]["spec"]}
    elif kind != "TrainJob":
        yield document


def strict(schema):
    """Returns the schema of a definition with unknown fields refused, as the API server does with strict field validation."""
    if isinstance(schema, list):
        return [strict(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    out = {k: strict(v) if k not in ("default", "enum") else v for k, v in schema.items()}
    if out.pop("x-kubernetes-int-or-string", False):
        return {"type": ["integer", "string"]}
    if isinstance(schema.get("properties"), dict):
        out["properties"] = {k: strict(v) for k, v in schema["properties"].items()}
        if "type" in schema and "additionalProperties" not in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
            out["additionalProperties"] = False
    return out


def definitions(folder):
    """{(apiVersion, kind): schema} of the CustomResourceDefinitions in the folder."""
    found = {}
    for path in glob.glob(os.path.join(folder, "*.yaml")):
        with open(path) as f:
            for crd in yaml.safe_load_all(f):
                for version in crd["spec"]["versions"]:
                    schema = strict(version["schema"]["openAPIV3Schema"])
                    schema["properties"]["metadata"] = {"type": "object"}
                    found[crd["spec"]["group"] + "/" + version["name"], crd["spec"]["names"]["kind"]] = schema
    return found


def main():
    versions = [v for v in kubernetes_validate.utils.all_versions() if tuple(map(int, v.split(".")[:2])) >= OLDEST]
    versions = sorted({".".join(v.split(".")[:2]) for v in versions}, key=lambda v: tuple(map(int, v.split("."))))
    crds = definitions(sys.argv[1]) if len(sys.argv) > 1 else {}
    failed = passed = 0
    for name, document in documents():
        checks = [(v, lambda d, v=v: kubernetes_validate.validate(d, v, strict=True), core)
                  for core in as_core(document) for v in versions]
        crd = crds.get((document["apiVersion"], document["kind"]))
        if crd:
            checks.append(("its definition", lambda d: jsonschema.Draft202012Validator(crd).validate(d), document))
        for against, check, what in checks:
            try:
                check(what)
                passed += 1
            except jsonschema.ValidationError as e:
                failed += 1
                print("%s: %s against %s: /%s: %s" % (name, document["kind"], against, "/".join(map(str, e.absolute_path)), e.message[:300]))
        print("%s: %s %s: %d validations (%s)" % (name, document["kind"], document["metadata"]["name"], len(checks),
                                                  ", ".join(dict.fromkeys(c[0] for c in checks)) or "none: no definition was given"))
    print("%d passed, %d failed" % (passed, failed))
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
